"""Trains on a random part of a group: the baseline for other down-sampling."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from headrace.consumers.algorithms.contract import Candidate
from headrace.consumers.algorithms.subset import Subset


class RandomM(Subset):
    """Keep m trajectories drawn without replacement, with equal probability for every subset.

    The draw takes the m smallest hashes of seed, policy, group and trajectory. It has no state, so a group always gives
    the same trajectories.
    """

    def __init__(self, m: int, seed: int = 1) -> None:
        super().__init__(m)
        self._seed = seed

    def choose(self, candidate: Candidate, ranked: Sequence[int]) -> Iterable[int]:
        """Draw from the group's identity."""
        group = candidate.group
        begin = hashlib.blake2b(f"{self._seed}/{group.policy}/{group.stream}/{group.number}/".encode(), digest_size=16)

        def draw(index: int) -> bytes:
            one = begin.copy()
            one.update(group.trajectories[index].id.encode())
            return one.digest()

        return sorted(ranked, key=draw)[: self._m]
