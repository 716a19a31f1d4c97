"""Problems whose answer is a program, made by code without end; a program runs in a box (docs/code.md)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from headrace.envs.code.cases import Cases
from headrace.envs.code.grading import SOLUTIONS, STARTER, TESTS, score_program
from headrace.envs.code.judge import Judge
from headrace.envs.code.worlds import TIERS, run_function
from headrace.envs.code.written_cases import write_feedback, write_test_prompt
from headrace.envs.contract import Problem, Score, Split, WorkedExample

POINTS = (0, 1)
"""Inputs of the cases in worked examples."""


class Programs:
    """Problems of one or several tiers, taken in turn.

    A hash of the statement decides the split, with an eighth each for `held_out` and `warm_start`, so no statement is
    in two splits; held-out problems are the same for every seed.

    Args:
        seed: Seed of the run.
        tiers: Names of tiers.
        shows_cases: Whether worked examples, of the tiers `single` and `micro`, show both roles of `code_tests`.
        limits: As of `Judge`.

    Raises ValueError for an unknown tier, and as `Judge` does.
    """

    name = "code"

    def __init__(
        self, seed: int, tiers: Sequence[str] = ("micro",), *, shows_cases: bool = False, **limits: Any
    ) -> None:
        if not isinstance(tiers, list | tuple) or not tiers or any(one not in list(TIERS) for one in tiers):
            raise ValueError(f"tiers must be a list of some of {', '.join(TIERS)}; got {tiers!r}")
        if shows_cases and set(tiers) - {"single", "micro"}:
            raise ValueError("shows_cases is for the tiers single and micro alone")
        self._seed, self._tiers, self._shows_cases = seed, tuple(tiers), shows_cases
        self._judge = Judge(**limits)

    def size(self, split: Split) -> None:
        """Return None: the problems do not end."""

    def problem(self, split: Split, index: int) -> Problem:
        """Return the problem at an index."""
        tier = self._tiers[index % len(self._tiers)]
        draw = Random(f"{tier} {split} {0 if split == 'held_out' else self._seed} {index}")  # noqa: S311
        while _choose_split((drawn := TIERS[tier](draw)).text) != split:
            pass
        return replace(drawn, task_id=f"{tier}:{_hash(drawn.text):016x}", tier=tier)

    def score(self, problem: Problem, text: str) -> Score:
        """Return reward 1 for a program that passes all tests. Raises BoxFailed and BoxUnavailable."""
        return score_program(self._judge, TESTS, problem, text)

    def solve(self, problem: Problem) -> Sequence[str]:
        """Return the answer of a perfect policy."""
        return [str(one) for one in problem.extra[SOLUTIONS]]

    def example(self, index: int) -> WorkedExample:
        """Return a problem of the split `warm_start` and its reference.

        With `shows_cases`, in turn: this, cases for it, it after cases that failed, and cases for a wrong program.
        """
        problem, kind = self.problem("warm_start", index // 2 if self._shows_cases else index), index % 4
        [answer] = self.solve(problem)
        if not self._shows_cases or kind == 0:
            return WorkedExample(problem.prompt, answer)
        pairs = [(one, run_function(problem.extra[STARTER] + answer, one)) for one in POINTS]
        if kind == 2:
            cases = Cases("f", [[one] for one, _ in pairs], [two for _, two in pairs])
            return WorkedExample(problem.text + write_feedback(problem, cases, [False] * len(pairs)), answer)
        judged = answer if kind == 1 else self.solve(self.problem("warm_start", index // 2 + 1))[0]
        return WorkedExample(write_test_prompt(problem, judged), json.dumps(pairs, separators=(",", ":")))


def _choose_split(statement: str) -> Split:
    eighth = _hash(statement) % 8
    return "held_out" if eighth == 0 else "warm_start" if eighth == 1 else "train"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
