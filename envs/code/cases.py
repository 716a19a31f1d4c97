"""The tests of a problem: inputs, and the outputs that a right program gives for them.

They are written as in DeepCoder's and LiveCodeBench's data: JSON `{"inputs": […], "outputs": […]}` for a program that
reads stdin and writes stdout; with `fn_name` for a function, whose inputs are lists of arguments. A list of objects
with `input` and `output`, as in `tests` of these data sets, is read too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from headrace.envs.code.in_box import spell

LEAST_CODE = 20
"""Characters of a fenced block that counts as code; shorter ones are often a single name."""
_FENCED = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)


class WrongTests(ValueError):
    """Tests of a problem cannot be read."""


@dataclass(frozen=True, slots=True)
class Cases:
    """Inputs of a program and what it must answer."""

    function: str
    """Name of the function that is called; empty for a program that reads stdin."""
    inputs: tuple[Any, ...]
    """Texts of stdin, or lists of arguments."""
    outputs: tuple[Any, ...]

    def is_passed(self, index: int, answer: str) -> bool:
        """Return whether what a program answered to an input is right: its stdout, or its value as `spell` has it."""
        wanted = self.outputs[index]
        if not self.function:
            return _is_same_output(answer, str(wanted))
        wrapped = isinstance(wanted, list) and len(wanted) == 1  # as in APPS and TACO
        return answer in {spell(wanted), *([spell(wanted[0])] if wrapped else [])}


def read_cases(given: Any) -> Cases:
    """Return the tests in JSON, or what it holds. Raises WrongTests."""
    try:
        found = json.loads(given) if isinstance(given, str) else given
        if isinstance(found, Sequence):
            found = _join_objects(found)
        name, inputs, outputs = found.get("fn_name") or "", found["inputs"], found["outputs"]
        if not inputs or len(inputs) != len(outputs):
            raise WrongTests(f"there are {len(inputs)} inputs and {len(outputs)} outputs")
        if not name:
            return Cases("", tuple(map(_join_lines, inputs)), tuple(map(_join_lines, outputs)))
        if isinstance(inputs[0], str):  # LiveCodeBench: each line is an argument in JSON
            inputs = [[json.loads(line) for line in text.splitlines()] for text in inputs]
            outputs = [json.loads(text) for text in outputs]
        return Cases(name, tuple(map(list, inputs)), tuple(outputs))
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise WrongTests(
            f"tests cannot be read ({type(error).__name__}: {error}); they are JSON with `inputs`, `outputs` and, for "
            f"a function, `fn_name`: {given!r:.80}"
        ) from error


def find_code(text: str) -> str:
    """Return the last fenced block of at least 20 characters; without one, the whole text."""
    blocks = [block for block in _FENCED.findall(text) if len(block.strip()) >= LEAST_CODE]
    return str(blocks[-1]) if blocks else text


def _join_objects(tests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = tests[0]
    name = first.get("fn_name") or (first.get("metadata") or {}).get("func_name")
    return {"fn_name": name, "inputs": [one["input"] for one in tests], "outputs": [one["output"] for one in tests]}


def _join_lines(text: Any) -> str:
    """Return a text of stdin or stdout, which some data have as a list of lines."""
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


def _is_same_output(given: str, wanted: str) -> bool:
    """Compare line by line without blanks at the ends; words that are numbers are compared as decimals."""
    left, right = ([line.strip() for line in text.strip().splitlines()] for text in (given, wanted))
    return len(left) == len(right) and all(map(_is_same_line, left, right))


def _is_same_line(given: str, wanted: str) -> bool:
    if given == wanted:
        return True
    try:
        return [Decimal(word) for word in given.split()] == [Decimal(word) for word in wanted.split()]
    except InvalidOperation:
        return False
