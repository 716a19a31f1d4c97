"""The tests of a problem: inputs, and the outputs that a right program gives for them.

They are written as in DeepCoder's and LiveCodeBench's data: JSON `{"inputs": […], "outputs": […]}` for a program that
reads stdin and writes stdout; with `fn_name` for a function, whose inputs are lists of arguments. Or as a list of
objects with `input` and `output`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from headrace.envs.code.in_box import spell
from headrace.envs.messages import show_value

LEAST_CODE = 20
"""Characters of a fenced block that is sure to be code; shorter ones are often a single name."""
MOST_NESTED = 100
"""Deepest nesting of values in tests: Python reads no literal with more than 200 brackets in each other."""
_NESTED = (dict, list, tuple)
_FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)


class WrongTests(ValueError):
    """Tests of a problem cannot be read."""


@dataclass(frozen=True, slots=True)
class Cases:
    """Inputs of a program and what it must answer."""

    function: str
    """Name of the function that is called; empty for a program that reads stdin."""
    inputs: list[Any]
    """Texts of stdin, or lists of arguments."""
    outputs: list[Any]

    def is_passed(self, index: int, answer: str) -> bool:
        """Return whether what a program answered to an input is right: its stdout, or its value as `spell` has it."""
        wanted = self.outputs[index]
        if not self.function:
            left, right = ([line.strip() for line in text.strip().splitlines()] for text in (answer, str(wanted)))
            return len(left) == len(right) and all(map(_is_same_line, left, right))
        wrapped = isinstance(wanted, list) and len(wanted) == 1  # as in APPS and TACO
        return answer in {spell(wanted), *([spell(wanted[0])] if wrapped else [])}


def read_cases(given: Any) -> Cases:
    """Return the tests in JSON, or in what it holds. Raises WrongTests."""
    try:
        found = json.loads(given) if isinstance(given, str) else given
        found = _join_objects(found) if isinstance(found, list) else found
        name, inputs, outputs = found.get("fn_name") or "", list(found["inputs"]), list(found["outputs"])
        if not name:
            inputs, outputs = list(map(write_text, inputs)), list(map(write_text, outputs))
        elif inputs and isinstance(inputs[0], str):  # LiveCodeBench: each line is an argument in JSON
            inputs = [[json.loads(line) for line in text.splitlines()] for text in inputs]
            outputs = [json.loads(text) for text in outputs]
        if not inputs or len(inputs) != len(outputs) or (name and not all(isinstance(one, list) for one in inputs)):
            raise WrongTests(f"{len(inputs)} inputs and {len(outputs)} outputs; arguments of a function are a list")
        if is_too_deep((inputs, outputs)):
            raise WrongTests(f"values are nested more than {MOST_NESTED} deep")
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise WrongTests(
            f"tests cannot be read ({type(error).__name__}: {error}); they are JSON with `inputs`, `outputs` and, for "
            f"a function, `fn_name`, or a list of objects with `input` and `output`: {show_value(given)}"
        ) from error
    return Cases(name, inputs, outputs)


def _join_objects(found: list[Any]) -> dict[str, Any]:
    """Return tests that are a list of objects as two lists; the function's name is in the first one or its metadata."""
    name = found[0].get("fn_name") or (found[0].get("metadata") or {}).get("func_name")
    if found[0].get("testtype") == "functional" and not name:
        raise WrongTests("`testtype` is functional, but the first object has no `fn_name`, nor `metadata.func_name`")
    return {"fn_name": name, "inputs": [one["input"] for one in found], "outputs": [one["output"] for one in found]}


def write_text(value: Any) -> str:
    """Return a value for stdin or stdout: a list is its lines."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def is_too_deep(value: Collection[Any], most: int = MOST_NESTED + 2) -> bool:
    """Return whether lists and objects are nested deeper than a box can read; two more hold the values of all cases."""
    inner = value.values() if isinstance(value, dict) else value
    return most < 0 or any(is_too_deep(one, most - 1) for one in inner if isinstance(one, _NESTED))


def read_references(given: Any) -> list[str]:
    """Return the reference programs of a problem: a list of texts, or JSON of one. Raises WrongTests."""
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list | tuple) or not found or not all(isinstance(one, str) for one in found):
        raise WrongTests(
            f"`solutions` must be a list of one program or more, or JSON of such a list: {show_value(given)}"
        )
    return list(found)


def find_code(text: str) -> str:
    """Return the last fenced block of at least 20 characters, else the last block, else the whole text."""
    blocks = _FENCED.findall(text)
    long = [block for block in blocks if len(block.strip()) >= LEAST_CODE]
    return str((long or blocks or [text])[-1])


def _is_same_line(given: str, wanted: str) -> bool:
    """Compare two lines; if all words are numbers, as decimals."""
    try:
        return given == wanted or [*map(Decimal, given.split())] == [*map(Decimal, wanted.split())]
    except InvalidOperation:
        return False
