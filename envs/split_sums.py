"""Sums whose parts an agent may give to sub-agents: `3+5,6+7?` asks for the last digit of the sum of all numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from headrace.envs.contract import Problem, Score, Split
from headrace.envs.thoughts import read_answer

_TASK = re.compile(r"\d(\+\d)*(,\d(\+\d)*)*\?")


class SplitSums:
    """Problems without end. `parts` is the number of sums of two digits. Raises ValueError for fewer than two."""

    name = "split_sums"

    def __init__(self, seed: int, parts: int = 2) -> None:
        if parts < 2:
            raise ValueError(f"parts, the number of sums to add, must be 2 or more; got {parts}")
        self._seed, self._parts = seed, parts

    def size(self, split: Split) -> int | None:  # noqa: ARG002 - the protocol's
        """Return None: the problems do not end."""
        return None

    def problem(self, split: Split, index: int) -> Problem:
        """Return a problem; held-out problems are the same for every seed."""
        draw = Random(f"split_sums {split} {0 if split == 'held_out' else self._seed} {index}")  # noqa: S311
        return _build(",".join(f"{draw.randrange(10)}+{draw.randrange(10)}" for _ in range(self._parts)) + "?")

    def sub_problem(self, problem: Problem, task: str) -> Problem:  # noqa: ARG002 - the protocol's
        """Return the problem of a sub-agent, which gets the task as it is."""
        return _build(task.strip())

    def score(self, problem: Problem, text: str) -> Score:
        """Return reward 1 for the digit alone, else 0."""
        return Score(float(bool(problem.answer) and read_answer(text).strip() == problem.answer))

    def solve(self, problem: Problem) -> Sequence[str]:
        """Return the answers of a perfect policy: an agent for each part, then the sum."""
        parts = problem.text.rstrip("?").split(",")
        if len(parts) == 1:
            return [problem.answer]
        return ["\n".join(f"@spawn {part}?" for part in parts), problem.answer]


def _build(text: str) -> Problem:
    answer = str(sum(map(int, re.findall(r"\d", text))) % 10) if _TASK.fullmatch(text) else ""
    return Problem(text, text, answer=answer)
