"""Centres or standardises a group's rewards."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.consumers.algorithms.contract import Candidate, Keep, Result, Stateless
from headrace.consumers.algorithms.group_statistics import mean_and_deviation, standardise
from headrace.infra.recipe.ranges import one_of


class NormaliseRewards(Stateless):
    """Replace a group's rewards by (r - mu) / (sigma + 1e-5), or by r - mu with `method = "centre"`.

    mu and the unbiased sigma are over all rewards that count, including those of failed episodes, which are normalised
    too. Advantages that compare within the group do the same; use this for other advantages, and for replay.
    """

    def __init__(self, method: str = "standard") -> None:
        one_of(("standard", "centre"), method=method)
        self._divides = method == "standard"

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:  # noqa: ARG002 - the protocol's
        """Shape all rewards together."""
        if self._divides:
            return [Keep(candidate.with_rewards(tuple(standardise(candidate.rewards))))]
        mean, _ = mean_and_deviation(candidate.rewards)
        return [Keep(candidate.with_rewards(tuple([reward - mean for reward in candidate.rewards])))]
