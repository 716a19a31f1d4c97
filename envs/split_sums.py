"""Sums whose parts an agent may give to sub-agents: `k3+5,6+7?` asks for the sum of all four digits.

The letter has no meaning, and is ignored. It makes prompts of sub-agents, such as `k3+5?`, differ: a warm start teaches
equal ones once, and there are few sums of two digits. A hash of the rest keeps an eighth of the sums held out, whatever
their letter; only their parts may be tasks of sub-agents in training.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from random import Random
from zlib import crc32

from headrace.envs.contract import Problem, Score, Split
from headrace.envs.thoughts import read_answer

_TASK = re.compile(r"[a-z]?\d(\+\d)*(,\d(\+\d)*)*\?")


class SplitSums:
    """Problems without end.

    Args:
        seed: Of the problems.
        parts: Number of sums of two digits, 2 or more.
        most: The largest digit, from 1 to 9.

    Raises ValueError for a setting out of its range.
    """

    name = "split_sums"

    def __init__(self, seed: int, parts: int = 2, most: int = 9) -> None:
        if parts < 2 or not 1 <= most <= 9:
            raise ValueError(f"parts must be 2 or more, and most from 1 to 9; got {parts} and {most}")
        self._seed, self._parts, self._most = seed, parts, most

    def size(self, split: Split) -> int | None:  # noqa: ARG002 - the protocol's
        """Return None: the problems do not end."""
        return None

    def problem(self, split: Split, index: int) -> Problem:
        """Return a problem; held-out sums are the same for every seed, and in no other split."""
        draw = Random(f"split_sums {split} {0 if split == 'held_out' else self._seed} {index}")  # noqa: S311
        while True:
            digits = [draw.randint(0, self._most) for _ in range(2 * self._parts)]
            asked = ",".join(f"{a}+{b}" for a, b in zip(digits[::2], digits[1::2], strict=True)) + "?"
            if (crc32(asked.encode()) % 8 == 0) == (split == "held_out"):
                return _build(draw.choice(string.ascii_lowercase) + asked)

    def sub_problem(self, problem: Problem, task: str) -> Problem:  # noqa: ARG002 - the protocol's
        """Return the problem of a sub-agent, which gets the task as it is."""
        return _build(task.strip())

    def score(self, problem: Problem, text: str) -> Score:
        """Return reward 1 for the sum alone, else 0."""
        return Score(float(bool(problem.answer) and read_answer(text).strip() == problem.answer))

    def solve(self, problem: Problem) -> Sequence[str]:
        """Return the answers of a perfect policy: an agent for each part, then the sum."""
        name, parts = problem.text[0], problem.text[1:].rstrip("?").split(",")
        if len(parts) == 1:
            return [problem.answer]
        return ["\n".join(f"@spawn {name}{part}?" for part in parts), problem.answer]


def _build(text: str) -> Problem:
    answer = str(sum(map(int, re.findall(r"\d", text)))) if _TASK.fullmatch(text) else ""
    return Problem(text, text, answer=answer)
