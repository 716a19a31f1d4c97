"""Scores an answer that holds a program: reward 1 if it passes every test."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from headrace.envs.code.cases import find_code, read_cases
from headrace.envs.code.judge import Judge
from headrace.envs.contract import Problem, Score
from headrace.envs.data.scorers import Scorer
from headrace.envs.thoughts import read_answer

TESTS, STARTER = "input_output", "starter"
"""Keys in a problem's `extra`: its tests, and code that an answer continues."""
INSTRUCTION = "\nAnswer with one fenced block of Python 3: ```python"


def write_program(problem: Problem, text: str) -> str:
    """Return the program in an answer, after the code that it continues."""
    return str(problem.extra.get(STARTER, "")) + find_code(read_answer(text))


def score_program(judge: Judge, tests: str, problem: Problem, text: str) -> Score:
    """Return reward 1 if all tests pass, else 0; the part `passed` is their share.

    Raises BoxFailed and BoxUnavailable, and WrongTests, which say nothing about the program.
    """
    passed = judge.check(write_program(problem, text), read_cases(problem.extra[tests]))
    return Score(float(all(passed)), {"passed": sum(passed) / len(passed)})


def build_scorer(
    tests: str = TESTS,
    test_limit_s: float = 6.0,
    total_limit_s: float = 8.0,
    limits: Mapping[str, Any] | None = None,
) -> Scorer:
    """Run programs on the tests in the column `tests`. Raises as `Judge` does."""
    judge = Judge(test_limit_s, total_limit_s, limits)
    return Scorer(partial(score_program, judge, tests), INSTRUCTION, needs_answer=False, keeps=(tests,))
