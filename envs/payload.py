"""Encodes a problem as the text in a task, so that the worker plays exactly the problem that the feeder drew."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields

from headrace.envs.contract import Problem
from headrace.infra.own_frames import read_error_text
from headrace.schemas.ids import LONGEST_NAME

FIELDS = tuple(f.name for f in fields(Problem))
LATER = ("tools", "template_arguments")
"""Fields that are written only if not empty: an older worker refuses tasks with them, but plays other tasks."""
JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "prompt": (str, list),
    "extra": dict,
    "tools": list,
    "template_arguments": dict,
}
"""JSON types of fields that are not strings."""


class PayloadError(ValueError):
    """A problem cannot be written as JSON, or a task's payload holds no problem."""


def problem_to_json(problem: Problem) -> str:
    """Return the problem as JSON; equal problems give equal texts. Raises PayloadError if `extra` is not plain JSON."""
    plain = {name: value for name in FIELDS if (value := getattr(problem, name)) or name not in LATER}
    try:
        return json.dumps(plain, sort_keys=True, allow_nan=False, default=_make_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(
            f"problem {problem.task_id!r} cannot be written as JSON ({read_error_text(error)}): its `extra`, messages, "
            "tools and template arguments may hold only strings, finite numbers, booleans, None, lists and dicts"
        ) from error


def check_task_can_hold(problem: Problem) -> None:
    """Raise PayloadError if a problem cannot be written as JSON, or has a name that workers refuse."""
    problem_to_json(problem)
    for name in ("task_id", "tier"):
        length = len(getattr(problem, name))
        if length > LONGEST_NAME:
            raise PayloadError(
                f"the {name} of problem {problem.task_id!r:.40} has {length} characters: give it at most {LONGEST_NAME}"
            )


def problem_from_json(text: str) -> Problem:
    """Return the problem in a task's payload. Raises PayloadError, which names the wrong part."""
    try:
        plain = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"payload is not JSON: {type(error).__name__}: {error}") from error
    if not isinstance(plain, dict) or set(plain) - set(FIELDS) or not {"task_id", "prompt"} <= set(plain):
        raise PayloadError(
            "payload must be a JSON object with task_id and prompt, and may have no keys other than "
            f"{', '.join(FIELDS)}; got {text[:80]!r}"
        )
    wrong = [name for name, value in plain.items() if not isinstance(value, JSON_TYPES.get(name, str))]
    if wrong:
        raise PayloadError(f"payload has a value of the wrong type in {', '.join(wrong)}: {text[:80]!r}")
    try:
        return Problem(**plain)
    except (TypeError, ValueError) as error:
        raise PayloadError(f"payload is not valid: {error}") from error


def _make_plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if callable(to_list := getattr(value, "tolist", None)):  # numbers and arrays of numpy and torch
        made: object = to_list()
        return made
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
