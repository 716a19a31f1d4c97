"""Programs to write, made by templates: steps on numbers, texts and lists, and a tier for tiny policies.

A tier's problem is drawn by a random number; its tests are what the reference answers to its inputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

STEPS = 3
SHOWN, HIDDEN = 2, 12
"""Tests of a problem that the statement shows, and others."""

Steps = dict[str, str]
"""A step in words to its line of Python."""
NUMBERS: Steps = {
    "double it": "x = 2 * x",
    "square it": "x = x * x",
    "subtract 7": "x = x - 7",
    "negate it": "x = -x",
    "replace it by the sum of its decimal digits": "x = sum(map(int, str(abs(x))))",
    "replace it by its remainder modulo 13": "x = x % 13",
    "add 1 if it is odd": "x = x + x % 2",
}
TEXTS: Steps = {
    "reverse it": "x = x[::-1]",
    "write it in upper case": "x = x.upper()",
    "remove every vowel": "x = ''.join(c for c in x if c not in 'aeiouAEIOU')",
    "drop the first character": "x = x[1:]",
    "write every character twice": "x = ''.join(2 * c for c in x)",
    "keep every second character, from the first one on": "x = x[::2]",
    "sort the characters": "x = ''.join(sorted(x))",
}
LISTS: Steps = {
    "keep the even numbers": "x = [n for n in x if n % 2 == 0]",
    "reverse it": "x = x[::-1]",
    "square every number": "x = [n * n for n in x]",
    "sort it in ascending order": "x = sorted(x)",
    "drop the first number": "x = x[1:]",
    "keep only the first of equal numbers": "x = list(dict.fromkeys(x))",
    "replace every number by its sum with all before it": "x = [sum(x[: i + 1]) for i in range(len(x))]",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """What the programs of a tier work on."""

    noun: str
    steps: Steps
    draw: Callable[[Random], Any]
    """An input."""
    read: str
    """Python that reads one from stdin."""
    written: str
    """Python that writes `x`."""


def _draw_text(draw: Random) -> str:
    return "".join(draw.choices("abcdeinorstuABEXY", k=draw.randint(4, 10)))


def _draw_list(draw: Random) -> list[int]:
    return draw.choices(range(-9, 10), k=draw.randint(3, 9))


KINDS = {
    "numbers": Kind("an integer", NUMBERS, lambda draw: draw.randint(-200, 200), "int(input())", "print(x)"),
    "texts": Kind("a text without blanks", TEXTS, _draw_text, "input()", "print(x)"),
    "lists": Kind("a list of integers", LISTS, _draw_list, "list(map(int, input().split()))", "print(*x)"),
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A problem of a tier."""

    statement: str
    reference: str
    """An answer that passes all tests, without a fence."""
    tests: str
    """JSON, as `read_cases` reads it."""
    starter: str = ""


def draw_steps(kind: Kind, draw: Random) -> Drawn:
    """Draw a function, or a program that reads stdin, of three different steps."""
    words, uses_stdin = draw.sample(list(kind.steps), STEPS), draw.random() < 0.5
    inputs = [kind.draw(draw) for _ in range(SHOWN + HIDDEN)]
    answers = [run_function(write_reference(kind, words, uses_stdin=False), given) for given in inputs]
    pairs = zip(inputs, answers, strict=True)
    told = [(_write_line(one), _write_line(two)) if uses_stdin else (one, two) for one, two in pairs]
    order = "; then ".join(words)
    task = f"reads {kind.noun} x from stdin" if uses_stdin else f"defines a function f of {kind.noun} x"
    end = "prints it" if uses_stdin else "returns it"
    examples = "\n".join(f"{one!r} gives {two!r}" for one, two in told[:SHOWN])
    statement = f"Write a program that {task}, changes x as follows, and {end}: {order}.\n\nExamples\n{examples}\n"
    reference = write_reference(kind, words, uses_stdin=uses_stdin)
    inputs = [one if uses_stdin else [one] for one, _ in told]
    return Drawn(statement, reference, write_tests("" if uses_stdin else "f", inputs, [two for _, two in told]))


def write_reference(kind: Kind, words: Sequence[str], *, uses_stdin: bool) -> str:
    """Return the program that does some steps in turn."""
    lines = [kind.steps[one] for one in words]
    if uses_stdin:
        return "\n".join([f"x = {kind.read}", *lines, kind.written])
    return "\n    ".join(["def f(x):", *lines, "return x"])


def draw_micro(draw: Random) -> Drawn:
    """Draw two operations in words, such as `a plus 3 times 2`, to be done from left to right; `a` is in one of them.

    The answer is the expression after `return`.
    """
    signs = {"plus": "+", "minus": "-", "times": "*"}
    while True:
        terms = [draw.choice("aaa123456789") for _ in range(3)]
        first, second = draw.choices(list(signs), k=2)
        if "a" in terms:
            break
    inner = f"{terms[0]}{signs[first]}{terms[1]}"
    if second == "times" and first != "times":
        inner = f"({inner})"
    reference, starter = f"{inner}{signs[second]}{terms[2]}", "def f(a):return "
    points = [-7, -2, 0, 1, 3, 6, 10]
    tests = write_tests("f", [[one] for one in points], [run_function(starter + reference, one) for one in points])
    return Drawn(f"{terms[0]} {first} {terms[1]} {second} {terms[2]}=", reference, tests, starter)


TIERS: dict[str, Callable[[Random], Drawn]] = {
    "micro": draw_micro,
    **{name: partial(draw_steps, kind) for name, kind in KINDS.items()},
}
"""Draws a problem, by tier, easiest first."""


def write_tests(function: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> str:
    """Return tests in the form of the data sets."""
    return json.dumps({"inputs": inputs, "outputs": outputs} | ({"fn_name": function} if function else {}))


def run_function(code: str, given: Any) -> Any:
    """Return what the function `f` of our own code returns."""
    space: dict[str, Any] = {}
    exec(code, space)  # noqa: S102 - made by this file
    return space["f"](given)


def _write_line(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
