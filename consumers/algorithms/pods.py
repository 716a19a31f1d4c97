"""Trains on the m trajectories whose rewards differ most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.consumers.algorithms.contract import Candidate
from headrace.consumers.algorithms.subset import Subset, rank_both_ways, take_largest_and_smallest

SPREAD_ROUNDING = 1e-12
"""Sums of squares count as equal if they differ by less than this share of the squared spread of rewards."""


class Pods(Subset):
    """Keep the m trajectories with the largest variance of shaped rewards (PODS, arXiv 2504.13818), in O(n log n).

    These are the k largest and the m - k smallest rewards for some k in 0..m; k = 0 and k = m win only if rewards are
    equal. Among equal rewards the smaller id is taken at both ends; among two k of equal variance, the one with the
    smaller sorted ids.
    """

    def choose(self, candidate: Candidate, ranked: Sequence[int]) -> Iterable[int]:
        """Try every k."""
        rewards, m = candidate.rewards, self._m
        falling, rising = rank_both_ways(ranked, rewards)
        best = find_best_counts([rewards[index] for index in rising], m)
        sets = [take_largest_and_smallest(falling, rising, k, m - k) for k in best]
        if len(sets) == 1:
            return sets[0]
        rank_of = {index: rank for rank, index in enumerate(ranked)}
        return min(sets, key=lambda members: sorted(rank_of[index] for index in members))


def find_best_counts(ascending: Sequence[float], m: int) -> list[int]:
    """Return every k for which the k largest and m - k smallest rewards have the largest variance; one k per set.

    With growing k the sum of squares about the mean first rises, then falls, so at most two sets can be equal.
    """
    middle = (ascending[0] + ascending[-1]) / 2
    values = [reward - middle for reward in ascending]
    smallest = values[:m]
    total, squares = sum(smallest), sum([value * value for value in smallest])
    best, most = [0], squares - total * total / m
    near = SPREAD_ROUNDING * (ascending[-1] - ascending[0]) ** 2
    for k in range(1, m + 1):
        out, new = values[m - k], values[-k]
        if out == new:
            continue  # the same rewards, so the same set
        total += new - out
        squares += new * new - out * out
        spread = squares - total * total / m
        if spread > most + near:
            best, most = [k], spread
        elif spread >= most - near:
            best.append(k)
    return best
