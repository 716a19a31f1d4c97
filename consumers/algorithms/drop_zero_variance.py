"""Dynamic sampling: drops groups that teach nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable

from headrace.consumers.algorithms.contract import Candidate, Drop, Keep, Result, Stateless
from headrace.consumers.algorithms.group_statistics import sequence_rewards
from headrace.consumers.algorithms.sizes import is_single
from headrace.infra.recipe.ranges import at_least


class DropZeroVariance(Stateless):
    """Drop a group if max r - min r <= epsilon over the members that count, because every advantage would be 0.

    Source: DAPO (arXiv 2503.14476). *Unshaped* rewards are compared, since shaping could give variance to a group in
        which all answers are wrong. Failed episodes that count have reward 0. Members that count but are left out of
        the loss are compared too. A sequence with its own reward counts with that reward. A group is kept if a sequence
        has its own baseline, because its advantage needs no comparison, and if the task asked for only one trajectory.
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
        detail = f"all {len(rewards)} rewards are {rewards[0]}" if rewards else "no reward counts"
        return [Drop("zero_variance", detail)]
