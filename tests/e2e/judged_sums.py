"""Sums whose worked examples show both roles: how to answer, and how to judge an answer."""

from __future__ import annotations

from fractions import Fraction

from headrace.envs.arithmetic import Arithmetic
from headrace.envs.contract import WorkedExample


class JudgedSums(Arithmetic):
    """Arithmetic of one digit; every second example is the verifier's, right and wrong candidates in turn."""

    def example(self, index: int) -> WorkedExample:
        problem = self.problem("warm_start", index // 2)
        if index % 2 == 0:
            return WorkedExample(problem.prompt, f"\\boxed{{{problem.answer}}}")
        right = index % 4 == 1
        answer = problem.answer if right else str(Fraction(problem.answer) + 1 + index % 3)
        return WorkedExample(
            f"{problem.prompt} \\boxed{{{answer}}} approve or reject? ", "approve" if right else "reject"
        )
