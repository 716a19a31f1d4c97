"""Problems whose answer is a program, made by code without end; a program runs in a box (docs/code.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from headrace.envs.code.grading import INSTRUCTION, SOLUTIONS, STARTER, TESTS, score_program
from headrace.envs.code.judge import Judge
from headrace.envs.code.worlds import TIERS
from headrace.envs.contract import Problem, Score, Split, WorkedExample


class Programs:
    """Problems of one or several tiers, taken in turn.

    A hash of the statement decides the split, with an eighth each for `held_out` and `warm_start`, so no statement is
    in two splits; held-out problems are the same for every seed. The settings after `tiers` are those of `Judge`.

    Raises ValueError for an unknown tier, and BoxUnavailable where this machine has no boxes.
    """

    name = "code"

    def __init__(
        self,
        seed: int,
        tiers: Sequence[str] = ("micro",),
        test_limit_s: float = 6.0,
        total_limit_s: float = 8.0,
        limits: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(tiers, str) or not tiers or set(tiers) - set(TIERS):
            raise ValueError(f"tiers must be a list of some of {', '.join(TIERS)}; got {tiers!r}")
        self._seed, self._tiers = seed, tuple(tiers)
        self.judge = Judge(test_limit_s, total_limit_s, limits)

    def size(self, split: Split) -> None:
        """Return None: the problems do not end."""

    def problem(self, split: Split, index: int) -> Problem:
        """Return the problem at an index."""
        tier = self._tiers[index % len(self._tiers)]
        draw = Random(f"{tier} {split} {0 if split == 'held_out' else self._seed} {index}")  # noqa: S311
        while _choose_split((drawn := TIERS[tier](draw)).statement) != split:
            pass
        prompt = drawn.statement if drawn.starter else drawn.statement + INSTRUCTION
        extra = {TESTS: drawn.tests, SOLUTIONS: [drawn.reference], STARTER: drawn.starter}
        return Problem(f"{tier}:{_hash(drawn.statement):016x}", prompt, tier=tier, extra=extra)

    def score(self, problem: Problem, text: str) -> Score:
        """Return reward 1 for a program that passes all tests. Raises BoxFailed and BoxUnavailable."""
        return score_program(self.judge, TESTS, problem, text)

    def solve(self, problem: Problem) -> Sequence[str]:
        """Return the answer of a perfect policy."""
        [reference] = problem.extra[SOLUTIONS]
        return [str(reference) if problem.extra[STARTER] else f"```python\n{reference}\n```"]

    def example(self, index: int) -> WorkedExample:
        """Return a problem of the split `warm_start` and its reference."""
        problem = self.problem("warm_start", index)
        return WorkedExample(problem.prompt, self.solve(problem)[0])

    def tiers(self) -> tuple[str, ...]:
        """Return all tiers, easiest first, also those not in use."""
        return tuple(TIERS)

    def asked(self) -> tuple[str, ...]:
        """Return the tiers in use, easiest first."""
        return tuple(name for name in TIERS if name in self._tiers)


def _choose_split(statement: str) -> Split:
    eighth = _hash(statement) % 8
    return "held_out" if eighth == 0 else "warm_start" if eighth == 1 else "train"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
