"""Sums and products of two numbers that only tools know: a world of 26 names is generated for each problem.

`a*k?` asks for the product of the numbers of `a` and `k`. The policy looks up both numbers, lets the calculator
multiply them, and answers with the result. Without the tools no answer is more than a guess.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from random import Random

from headrace.envs.contract import Problem, Score, Split
from headrace.envs.thoughts import read_answer

NAMES = string.ascii_lowercase
OPERATIONS = {"+": "add", "*": "mul"}


class Ledger:
    """Problems without end. `most` is the largest number; with `tasks`, training repeats so many problems.

    Raises ValueError for `most` below 2, and for `tasks` below 1.
    """

    name = "ledger"

    def __init__(self, seed: int, most: int = 99, tasks: int | None = None) -> None:
        if most < 2:
            raise ValueError(f"most, the largest number of the world, must be 2 or more; got {most}")
        if tasks is not None and tasks < 1:
            raise ValueError(f"tasks, the number of training problems, must be 1 or more; got {tasks}")
        self._seed, self._most, self._tasks = seed, most, tasks
        self.tools = (self.get, self.add, self.mul)

    def size(self, split: Split) -> int | None:
        """Return None, as problems do not end, or the number of training problems."""
        return self._tasks if split == "train" else None

    def problem(self, split: Split, index: int) -> Problem:
        """Return a problem with a world of its own; held-out problems are the same for every seed."""
        if split == "train" and self._tasks is not None:
            index %= self._tasks
        draw = Random(f"ledger {split} {0 if split == 'held_out' else self._seed} {index}")  # noqa: S311
        table = {name: draw.randint(1, self._most) for name in NAMES}
        first, second = draw.sample(NAMES, 2)
        operation = draw.choice(list(OPERATIONS))
        a, b = table[first], table[second]
        answer = a + b if operation == "+" else a * b
        prompt = f"{first}{operation}{second}?"
        return Problem(f"{prompt} {a} {b}", prompt, answer=str(answer), tier=OPERATIONS[operation], extra=table)

    def score(self, problem: Problem, text: str) -> Score:
        """Return reward 1 for the number alone, else 0."""
        return Score(float(read_answer(text).strip() == problem.answer))

    def solve(self, problem: Problem) -> Sequence[str]:
        """Return the answers of a perfect policy: both names, the calculation, the result."""
        first, operation, second = list(problem.text[:3])
        a, b = problem.extra[first], problem.extra[second]
        return [f"@get {first}\n@get {second}", f"@{OPERATIONS[operation]} {a}, {b}", problem.answer]

    def get(self, name: str, problem: Problem) -> str:
        """Look up a number.

        Args:
            name: A letter.
        """
        return str(problem.extra.get(name, "unknown name"))

    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def mul(self, a: int, b: int) -> int:
        """Multiply two numbers."""
        return a * b
