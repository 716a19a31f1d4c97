"""Common base of algorithms that choose m of a group's n trajectories."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from headrace.consumers.algorithms.contract import Candidate, Keep, Rejection, Result, Stateless
from headrace.infra.recipe.ranges import at_least


class Subset(Stateless):
    """Base of algorithms that train on m of the kept trajectories, with statistics over these alone.

    Trajectories that are not chosen or were left out of the loss before, and failed episodes, no longer count. A group
    of m or fewer passes unchanged.
    """

    def __init__(self, m: int) -> None:
        at_least(2, m=m)
        self._m = m

    def choose(self, candidate: Candidate, ranked: Sequence[int]) -> Iterable[int]:
        """Return m of the given indices. There are more than m of them, in the order of the trajectories' ids."""
        raise NotImplementedError

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:  # noqa: ARG002 - the protocol's
        """Remove all but m trajectories."""
        if len(candidate.kept) <= self._m:
            return [Keep(candidate)]
        rewards = candidate.rewards
        ranked = [index for index in _sort_by_id(candidate) if rewards[index] == rewards[index]]  # not NaN
        chosen = set(self.choose(candidate, ranked) if len(ranked) > self._m else ranked)
        why = f"not among the {self._m} chosen"
        rejections = [Rejection(index, "down_sampled", why) for index in candidate.kept if index not in chosen]
        left = candidate.without(rejections, counted=False)
        if len(candidate.kept) == len(rewards):
            return [Keep(left)]
        members = rewards[: len(candidate.group.trajectories)]
        counted = [reward if index in chosen else math.nan for index, reward in enumerate(members)]
        return [Keep(left.with_rewards(tuple(counted)))]


def rank_both_ways(ranked: Sequence[int], rewards: Sequence[float]) -> tuple[list[int], list[int]]:
    """Return the indices by reward, largest first and smallest first; equal rewards keep their order in both."""
    return sorted(ranked, key=rewards.__getitem__, reverse=True), sorted(ranked, key=rewards.__getitem__)


def take_largest_and_smallest(falling: Sequence[int], rising: Sequence[int], largest: int, smallest: int) -> set[int]:
    """Return this many indices from the begin of both lists: of the largest and of the smallest rewards."""
    taken = set(falling[:largest])
    return taken.union([index for index in rising if index not in taken][:smallest])


def _sort_by_id(candidate: Candidate) -> list[int]:
    """Return the kept indices, smallest id first: `sums:7:2` before `sums:7:10`."""
    members = candidate.group.trajectories

    def key(index: int) -> tuple[str, int]:
        ident = members[index].id
        stem, _, sample = ident.rpartition(":")
        return (stem, int(sample)) if sample.isdecimal() else (ident, -1)

    return sorted(candidate.kept, key=key)
