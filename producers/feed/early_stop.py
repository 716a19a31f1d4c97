"""Detects that held-out reward no longer rises, without I/O."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, TypeAlias

from headrace.schemas.records import EvalResult

Evaluated: TypeAlias = tuple[str, str]
"""Workflow and policy."""


class EarlyStop:
    """Early stopping by patience: detects that held-out reward no longer rises for any policy in any workflow.

    A policy no longer rises in a workflow when `after` evaluations of versions later than its best were not better.
    An evaluation without a played episode does not count.

    Args:
        evaluated: Pairs of workflow and policy that are evaluated.
        after: Evaluations without a better reward; 0 never stops.
    """

    def __init__(self, evaluated: frozenset[Evaluated], after: int) -> None:
        self.after = after
        self._best: dict[Evaluated, tuple[float, int]] = {}
        """Highest reward, and the earliest version with it."""
        self._later: dict[Evaluated, set[int]] = {one: set() for one in evaluated}
        """Versions later than the best that were evaluated."""

    def observe(self, result: EvalResult) -> None:
        """Take in a result; results may come in any order and repeatedly."""
        one = result.workflow, result.policy
        if not self.after or one not in self._later or not result.has_reward or not math.isfinite(result.avg_at_k):
            return
        reward, version = self._best.get(one, (-math.inf, -1))
        later = self._later[one]
        if result.avg_at_k > reward:
            self._best[one] = result.avg_at_k, result.version
            later |= {version} if version > result.version else set()
            self._later[one] = {seen for seen in later if seen > result.version}
        elif result.version > version:
            later.add(result.version)

    def is_over(self, complete: Collection[str] = ()) -> bool:
        """Return whether no policy rises any more; `complete` are the policies that have their last version."""
        if not self.after:
            return False
        rising = [policy for (_, policy), later in self._later.items() if len(later) < self.after]
        return len(rising) < len(self._later) and set(rising) <= set(complete)

    def clear(self) -> None:
        """Set the counts to 0 and keep the best rewards."""
        for later in self._later.values():
            later.clear()

    def snapshot(self) -> list[Any]:
        """Return the state as JSON has it."""
        return [[*one, *best, sorted(self._later[one])] for one, best in self._best.items()]

    def restore(self, state: list[Any]) -> None:
        """Take the state that `snapshot` returned."""
        for workflow, policy, reward, version, later in state:
            if (workflow, policy) in self._later:
                self._best[workflow, policy] = reward, version
                self._later[workflow, policy] = set(later)
