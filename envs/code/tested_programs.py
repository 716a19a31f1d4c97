"""Programs whose worked examples show both roles of `code_tests`: to write a program, and two test cases for one."""

from __future__ import annotations

import json
from dataclasses import replace

from headrace.envs.code.cases import Cases
from headrace.envs.code.grading import SOLUTIONS, STARTER
from headrace.envs.code.programs import Programs
from headrace.envs.code.worlds import run_function
from headrace.envs.code.written_cases import ASK, TOLD, write_feedback, write_test_prompt
from headrace.envs.contract import Problem, Split, WorkedExample

POINTS = (0, 2)
"""Inputs of the cases in worked examples."""


class ProgramsWithCases(Programs):
    """Programs of the tier `micro`, for a solver and a tester that share a warm start."""

    name = "tested_code"

    def problem(self, split: Split, index: int) -> Problem:
        """Return the problem at an index, with short words for prompts of `code_tests`."""
        found = super().problem(split, index)
        return replace(found, extra={**found.extra, ASK: " tests?", TOLD: ""})

    def example(self, index: int) -> WorkedExample:
        """Return, in turn, an answer, cases for it, an answer after cases that failed, and cases for a wrong one."""
        problem, kind = self.problem("warm_start", index // 2), index % 4
        [answer] = problem.extra[SOLUTIONS]
        if kind == 0:
            return WorkedExample(problem.text, answer)
        pairs = [(one, run_function(problem.extra[STARTER] + answer, one)) for one in POINTS]
        if kind == 2:
            cases = Cases("f", tuple([one] for one, _ in pairs), tuple(two for _, two in pairs))
            return WorkedExample(problem.text + write_feedback(problem, cases, [False] * len(pairs)), answer)
        other = self.problem("warm_start", index // 2 + 1).extra[SOLUTIONS][0]
        judged = answer if kind == 1 else other
        return WorkedExample(write_test_prompt(problem, judged), json.dumps(pairs, separators=(",", ":")))
