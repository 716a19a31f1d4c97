"""Dynamic sampling: drop groups that nothing can be learnt from."""

from __future__ import annotations

import math
from collections.abc import Iterable

from headrace.consumers.algorithms.contract import Candidate, Drop, Keep, Result, Stateless
from headrace.consumers.algorithms.group_statistics import sequence_rewards
from headrace.consumers.algorithms.sizes import is_single
from headrace.infra.recipe.ranges import at_least


class DropZeroVariance(Stateless):
    """Drop a group when max r - min r <= epsilon over the members that count: every advantage would be 0.

    Source: DAPO (arXiv 2503.14476). The rewards are the *unshaped* ones, since shaping could give variance to a group
    that is wrong throughout; failed episodes that count are rewards of 0. A member that is left out of the loss and
    still counts is compared too. A sequence with a reward of its own counts with that, and one with a baseline of its
    own keeps the group: its advantage does not come from a comparison. So does a group asked for as one trajectory.
    """

    def __init__(self, epsilon: float = 1e-8) -> None:
        at_least(0, epsilon=epsilon)
        self._epsilon = epsilon

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:  # noqa: ARG002 - the protocol's
        """Compare the largest reward with the smallest."""
        members = candidate.group.trajectories
        if is_single(candidate.group) or any(
            sequence.baseline is not None
            for reward, member in zip(candidate.rewards, members, strict=False)
            if not math.isnan(reward)
            for sequence in member.sequences
        ):
            return [Keep(candidate)]
        unshaped = [*(member.reward for member in members), *(0.0 for _ in candidate.rewards[len(members) :])]
        rewards = sequence_rewards(candidate, unshaped)
        if rewards and max(rewards) - min(rewards) > self._epsilon:
            return [Keep(candidate)]
        return [Drop("zero_variance", f"all {len(rewards)} rewards are {rewards[0] if rewards else 'missing'}")]
