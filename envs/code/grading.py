"""Scores an answer that holds a program: reward 1 if it passes every test."""

from __future__ import annotations

from functools import partial
from typing import Any

from headrace.envs.code.cases import find_code, read_cases
from headrace.envs.code.judge import Judge
from headrace.envs.contract import Problem, Score
from headrace.envs.data.scorers import Scorer
from headrace.envs.thoughts import read_answer

TESTS, STARTER, SOLUTIONS = "input_output", "starter", "solutions"
"""Keys in a problem's `extra`: its tests, code that an answer continues, and references."""
EACH = "passed_"
"""Key in a problem's `extra`: all tests are run, and each is a part of the reward."""
INSTRUCTION = "\nAnswer with one fenced block of Python 3: ```python"


def write_program(problem: Problem, text: str) -> str:
    """Return the program in an answer, after the code that it continues."""
    return str(problem.extra.get(STARTER, "")) + find_code(read_answer(text))


def score_program(judge: Judge, tests: str, problem: Problem, text: str) -> Score:
    """Return reward 1 if all tests pass, else 0; the part `passed` is the share of tests that pass.

    Raises BoxFailed and BoxUnavailable, and WrongTests, which say nothing about the program.
    """
    is_each_told = EACH in problem.extra
    cases = read_cases(problem.extra[tests])
    passed = judge.check(write_program(problem, text), cases, is_stopped_early=not is_each_told)
    parts = {f"{EACH}{at}": one for at, one in enumerate(passed)} if is_each_told else {}
    return Score(float(all(passed)), {"passed": sum(passed) / len(passed), **parts})


def build_scorer(tests: str = TESTS, **limits: Any) -> Scorer:
    """Run programs on the tests in the column `tests`; `limits` and errors are those of `Judge`."""
    return Scorer(partial(score_program, Judge(**limits), tests), INSTRUCTION, needs_answer=False, keeps=(tests,))
