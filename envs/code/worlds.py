"""Programs to write, made by templates: steps on numbers, texts and lists, and two tiers for tiny policies.

A tier's problem is drawn by a random number; its tests are what the reference answers to its inputs.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

from headrace.envs.code.grading import INSTRUCTION, SOLUTIONS, STARTER, TESTS
from headrace.envs.code.written_cases import ASK, TOLD
from headrace.envs.contract import Problem

SIGNS = {"plus": "+", "minus": "-", "times": "*"}
STARTED = "def f(a):return "
STEPS = 3
SHOWN, HIDDEN = 2, 12
"""Tests of a problem that the statement shows, and others."""


class Kind(NamedTuple):
    """What the programs of a tier work on."""

    noun: str
    draw: Callable[[Random], Any]
    """An input."""
    read: str
    """Python that reads one from stdin."""
    write: str
    """Python that writes `x`."""
    steps: dict[str, str]
    """A step in words to its line of Python."""


KINDS = {
    "numbers": Kind(
        "an integer",
        lambda draw: draw.randint(-200, 200),
        "x = int(input())",
        "print(x)",
        {
            "double it": "x = 2 * x",
            "square it": "x = x * x",
            "subtract 7": "x = x - 7",
            "replace it by the sum of its decimal digits": "x = sum(map(int, str(abs(x))))",
            "replace it by its remainder modulo 13": "x = x % 13",
            "add 1 if it is odd": "x = x + x % 2",
        },
    ),
    "texts": Kind(
        "a text without blanks",
        lambda draw: "".join(draw.choices("abcdeinorstuABEXY", k=draw.randint(4, 10))),
        "x = input()",
        "print(x)",
        {
            "reverse it": "x = x[::-1]",
            "write it in upper case": "x = x.upper()",
            "remove every vowel": "x = ''.join(c for c in x if c not in 'aeiouAEIOU')",
            "drop the first character": "x = x[1:]",
            "write every character twice": "x = ''.join(2 * c for c in x)",
            "sort the characters": "x = ''.join(sorted(x))",
        },
    ),
    "lists": Kind(
        "a list of integers",
        lambda draw: draw.choices(range(-9, 10), k=draw.randint(3, 9)),
        "x = list(map(int, input().split()))",
        "print(*x)",
        {
            "keep the even numbers": "x = [n for n in x if n % 2 == 0]",
            "reverse it": "x = x[::-1]",
            "square every number": "x = [n * n for n in x]",
            "sort it in ascending order": "x = sorted(x)",
            "drop the first number": "x = x[1:]",
            "keep only the first of equal numbers": "x = list(dict.fromkeys(x))",
        },
    ),
}


def draw_steps(kind: Kind, draw: Random) -> Problem:
    """Draw a function, or a program that reads stdin, of three different steps."""
    words, uses_stdin = draw.sample(list(kind.steps), STEPS), draw.random() < 0.5
    function = write_function(kind, words)
    pairs = [(one, run_function(function, one)) for one in (kind.draw(draw) for _ in range(SHOWN + HIDDEN))]
    task, end, reference = f"a function f of {kind.noun} x that", "returns it", function
    if uses_stdin:
        task, end = f"a program that reads {kind.noun} x from stdin,", "prints it"
        reference = "\n".join([kind.read, *(kind.steps[one] for one in words), kind.write])
        pairs = [(_write_line(one), _write_line(two)) for one, two in pairs]
    examples = "\n".join(f"{one!r} gives {two!r}" for one, two in pairs[:SHOWN])
    statement = f"Write {task} changes x as follows, and {end}: {'; then '.join(words)}.\n\nExamples\n{examples}\n"
    tests = write_tests(pairs, "" if uses_stdin else "f")
    return Problem("", statement + INSTRUCTION, extra={TESTS: tests, SOLUTIONS: [f"```python\n{reference}\n```"]})


def write_function(kind: Kind, words: Sequence[str]) -> str:
    """Return the function that does some steps in turn."""
    return "\n    ".join(["def f(x):", *(kind.steps[one] for one in words), "return x"])


def draw_expression(operations: int, draw: Random) -> Problem:
    """Draw operations in words, such as `a plus 3 times 2`, to be done from left to right; `a` is in one of them.

    The answer is the expression after `return`. There are only 57 expressions of one operation, so their statements
    begin with a name, as in `kx a plus 3`, which must be ignored.
    """
    terms = ["1"]
    while "a" not in terms:
        terms = draw.choices("aaa123456789", k=operations + 1)
    words = "" if operations > 1 else f"{''.join(draw.choices(string.ascii_lowercase, k=2))} "
    words, reference, before = words + terms[0], terms[0], "*"
    for word, term in zip(draw.choices(list(SIGNS), k=operations), terms[1:], strict=True):
        inner = f"({reference})" if SIGNS[word] == "*" != before else reference
        words, reference, before = f"{words} {word} {term}", f"{inner}{SIGNS[word]}{term}", SIGNS[word]
    pairs = [(one, run_function(STARTED + reference, one)) for one in (-7, -2, 0, 1, 3, 6, 10)]
    extra = {TESTS: write_tests(pairs, "f"), SOLUTIONS: [reference], STARTER: STARTED, ASK: " tests?", TOLD: ""}
    return Problem("", f"{words}=", extra=extra)


TIERS: dict[str, Callable[[Random], Problem]] = {
    "single": partial(draw_expression, 1),
    "micro": partial(draw_expression, 2),
    **{name: partial(draw_steps, kind) for name, kind in KINDS.items()},
}
"""Draws a problem without its id, by tier, easiest first."""


def write_tests(pairs: Sequence[tuple[Any, Any]], function: str) -> str:
    """Return tests in the form of the data sets; `function` has one argument."""
    inputs = [[one] if function else one for one, _ in pairs]
    return json.dumps({"fn_name": function, "inputs": inputs, "outputs": [two for _, two in pairs]})


def run_function(code: str, given: Any) -> Any:
    """Return what the function `f` of our own code returns."""
    space: dict[str, Any] = {}
    exec(code, space)  # noqa: S102 - made by this file
    return space["f"](given)


def _write_line(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
