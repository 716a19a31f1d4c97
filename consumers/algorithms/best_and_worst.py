"""Trains on the best and the worst trajectories of a group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.consumers.algorithms.contract import Candidate
from headrace.consumers.algorithms.subset import Subset, rank_both_ways, take_largest_and_smallest


class BestAndWorst(Subset):
    """Keep the m/2 trajectories with the largest and the m/2 with the smallest shaped rewards; for odd m one more best.

    Among equal rewards the smaller id is taken at both ends.
    """

    def choose(self, candidate: Candidate, ranked: Sequence[int]) -> Iterable[int]:
        """Take both ends."""
        return take_largest_and_smallest(
            *rank_both_ways(ranked, candidate.rewards), self._m - self._m // 2, self._m // 2
        )
