"""Train again on groups that are neither solved nor beyond the policy, drawn at random."""

from __future__ import annotations

from headrace.consumers.algorithms.contract import Candidate
from headrace.consumers.algorithms.replay_uniform import ReplayUniform


class ReplayDots(ReplayUniform):
    """Draw uniformly from groups whose mean reward is between 0 and 1, both left out; the oldest leave first.

    Rewards are the unshaped ones of the kept members. Source: rollout replay of DOTS (arXiv 2506.05316), with its fresh
    share of one half and its buffer of 512 groups.
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
        """Refuse what is solved, or beyond the policy."""
        rewards = [candidate.group.trajectories[index].reward for index in candidate.kept]
        return 0 < sum(rewards) < len(rewards)
