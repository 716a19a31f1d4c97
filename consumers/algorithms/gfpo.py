"""Samples more, and trains on the shortest or most efficient trajectories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.consumers.algorithms.contract import Candidate, generated_lengths
from headrace.consumers.algorithms.subset import Subset
from headrace.infra.recipe.ranges import one_of


class Gfpo(Subset):
    """Keep the m shortest trajectories, or the m with the largest shaped reward per generated token.

    Among equal ones the smaller id is taken. Source: GFPO (arXiv 2508.09726), where m is called k.
    """

    def __init__(self, m: int, by: str = "length") -> None:
        super().__init__(m)
        one_of(("length", "reward_per_token"), by=by)
        self._by_length = by == "length"

    def choose(self, candidate: Candidate, ranked: Sequence[int]) -> Iterable[int]:
        """Sort by length, or by reward per token."""
        lengths = generated_lengths(candidate.group)
        if self._by_length:
            return sorted(ranked, key=lengths.__getitem__)[: self._m]
        return sorted(ranked, key=lambda index: -candidate.rewards[index] / max(1, lengths[index]))[: self._m]
