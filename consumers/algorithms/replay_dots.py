"""Replays random groups that are neither fully solved nor fully failed."""

from __future__ import annotations

from headrace.consumers.algorithms.contract import Candidate
from headrace.consumers.algorithms.replay_uniform import ReplayUniform


class ReplayDots(ReplayUniform):
    """Draw uniformly from groups with mean reward strictly between 0 and 1; the oldest leave first.

    It uses unshaped rewards of the kept members. Source: rollout replay of DOTS (arXiv 2506.05316), with a fresh share
    of one half and a buffer of 512 groups.
    """

    def __init__(
        self,
        *,
        ratio: float = 0.5,
        capacity: int = 512,
        max_uses: int = 4,
        max_staleness: int = 8,
        seed: int = 1,
    ) -> None:
        super().__init__(ratio=ratio, capacity=capacity, max_uses=max_uses, max_staleness=max_staleness, seed=seed)

    def can_take(self, candidate: Candidate) -> bool:
        """Refuse groups that are fully solved or fully failed."""
        rewards = [candidate.group.trajectories[index].reward for index in candidate.kept]
        return 0 < sum(rewards) < len(rewards)
