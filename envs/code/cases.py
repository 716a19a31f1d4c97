"""The tests of a problem: inputs, and the outputs that a right program gives for them.

They are written as in DeepCoder's and LiveCodeBench's data: JSON `{"inputs": […], "outputs": […]}` for a program that
reads stdin and writes stdout; with `fn_name` for a function, whose inputs are lists of arguments.
"""

from __future__ import annotations

import json
import re
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
        name, inputs, outputs = found.get("fn_name") or "", list(found["inputs"]), list(found["outputs"])
        if not name:
            inputs = list(map(str, inputs))
        elif inputs and isinstance(inputs[0], str):  # LiveCodeBench: each line is an argument in JSON
            inputs = [[json.loads(line) for line in text.splitlines()] for text in inputs]
            outputs = [json.loads(text) for text in outputs]
        if not inputs or len(inputs) != len(outputs) or (name and not all(isinstance(one, list) for one in inputs)):
            raise WrongTests(f"{len(inputs)} inputs and {len(outputs)} outputs; arguments of a function are a list")
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise WrongTests(
            f"tests cannot be read ({type(error).__name__}: {error}); they are JSON with `inputs`, `outputs` and, for "
            f"a function, `fn_name`: {given!r:.80}"
        ) from error
    return Cases(name, inputs, outputs)


def find_code(text: str) -> str:
    """Return the last fenced block of at least 20 characters; without one, the whole text."""
    blocks = [block for block in _FENCED.findall(text) if len(block.strip()) >= LEAST_CODE]
    return str(blocks[-1]) if blocks else text


def _is_same_line(given: str, wanted: str) -> bool:
    """Compare two lines; if all words are numbers, as decimals."""
    try:
        return given == wanted or [*map(Decimal, given.split())] == [*map(Decimal, wanted.split())]
    except InvalidOperation:
        return False
