"""A problem as the text that a task carries: what the feeder drew is exactly what the worker plays and judges."""

from __future__ import annotations

import json
from dataclasses import fields

from headrace.envs.contract import Problem

FIELDS = tuple(f.name for f in fields(Problem))


class PayloadError(ValueError):
    """A problem cannot be written as JSON, or a task's payload holds no problem."""


def problem_to_json(problem: Problem) -> str:
    """Return the problem as JSON; equal problems give equal texts. Raises PayloadError when `extra` is not plain."""
    plain = {name: getattr(problem, name) for name in FIELDS} | {"extra": dict(problem.extra)}
    try:
        return json.dumps(plain, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PayloadError(
            f"problem {problem.task_id!r} is not plain JSON ({error}): keep numbers, strings, lists and maps in `extra`"
        ) from error


def problem_from_json(text: str) -> Problem:
    """Return the problem of a task's payload. Raises PayloadError, which names what does not fit."""
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"payload is not JSON: {type(error).__name__}: {error}") from error
    if not isinstance(plain, dict) or set(plain) - set(FIELDS) or not {"task_id", "prompt"} <= set(plain):
        raise PayloadError(f"payload is not a problem, an object with {', '.join(FIELDS)}: {text[:80]!r}")
    kinds = {name: dict if name == "extra" else str for name in FIELDS}
    wrong = [name for name, value in plain.items() if not isinstance(value, kinds[name])]
    if wrong:
        raise PayloadError(f"payload has a value of the wrong type in {', '.join(wrong)}: {text[:80]!r}")
    return Problem(**plain)
