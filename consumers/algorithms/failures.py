"""Decides on groups in which some episodes failed."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.consumers.algorithms.contract import Candidate, Drop, Keep, Result, Stateless
from headrace.consumers.algorithms.sizes import drop_if_nothing_left, keep_or_drop
from headrace.infra.recipe.ranges import one_of

POLICIES = ("drop_group", "keep_survivors", "count_as_zero")


class Failures(Stateless):
    """Drop the group, train only on its survivors, or count each failure as an untrained reward of 0.

    `drop_group` is AstraFlow's rule. `keep_survivors`, the default also of a chain without this algorithm, takes
    statistics over survivors, which favours tasks that fail less. `count_as_zero` adds a reward of 0 for each failure;
    shaping of single rewards does not change it, and it counts towards the least size of a group (two). A group without
    a survivor is dropped with its own reason. This algorithm must be the first of a chain.
    """

    def __init__(self, policy: str = "keep_survivors") -> None:
        one_of(POLICIES, policy=policy)
        self._policy = policy

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:  # noqa: ARG002 - the protocol's
        """Look at the group's failures."""
        if (nothing := drop_if_nothing_left(candidate)) is not None:
            return [nothing]
        failed = len(candidate.group.failures)
        if not failed:
            return [Keep(candidate)]
        if self._policy == "drop_group":
            return [Drop("failures", f"{failed} of {candidate.group.n_asked} failed")]
        if self._policy == "keep_survivors":
            return [keep_or_drop(candidate, "failures")]
        return [keep_or_drop(candidate.with_rewards(candidate.rewards + (0.0,) * failed), "failures")]
