"""Arithmetic whose worked examples show both roles of `solver_verifier`: to answer, and to judge an answer."""

from __future__ import annotations

from fractions import Fraction

from headrace.envs.arithmetic import Arithmetic
from headrace.envs.contract import WorkedExample


class JudgedArithmetic(Arithmetic):
    """Arithmetic for a solver and a verifier that share a warm start."""

    name = "judged_arithmetic"

    def example(self, index: int) -> WorkedExample:
        """Return, in turn, an answer, an approval of an answer, an answer after a rejection, and a rejection."""
        problem = self.problem("warm_start", index // 2)
        solved, kind = f"\\boxed{{{problem.answer}}}", index % 4
        if kind in (0, 2):
            return WorkedExample(problem.text if kind == 0 else f"{problem.text} reject ", solved)
        wrong = f"\\boxed{{{Fraction(problem.answer) + 1 + index % 3}}}"
        judged, verdict = (solved, "approve") if kind == 1 else (wrong, "reject")
        return WorkedExample(f"{problem.text} {judged} approve or reject? ", verdict)
