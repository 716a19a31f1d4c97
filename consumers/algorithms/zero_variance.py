"""Dynamic sampling: drop groups that nothing can be learnt from."""

from __future__ import annotations

from collections.abc import Iterable

from consumers.algorithms.contract import Candidate, Drop, Keep, Result, Stateless


class DropZeroVariance(Stateless):
    """Drop a group when max r - min r <= epsilon over its kept members: every advantage would be 0.

    Source: DAPO (arXiv 2503.14476). The rewards are the *unshaped* ones, since shaping could give variance to a group
    that is wrong throughout. A sequence with a reward of its own counts with that, and one with a baseline of its own
    keeps the group: its advantage does not come from a comparison.
    """

    def __init__(self, epsilon: float = 1e-8) -> None:
        if not epsilon >= 0:
            raise ValueError(f"epsilon is a difference of rewards, 0 or more; got {epsilon}")
        self._epsilon = epsilon

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:  # noqa: ARG002 - the protocol's
        """Compare the largest reward with the smallest."""
        members = [candidate.group.trajectories[index] for index in candidate.kept]
        sequences = [(member, sequence) for member in members for sequence in member.sequences]
        if any(sequence.baseline is not None for _, sequence in sequences):
            return [Keep(candidate)]
        rewards = [member.reward if sequence.reward is None else sequence.reward for member, sequence in sequences]
        if rewards and max(rewards) - min(rewards) > self._epsilon:
            return [Keep(candidate)]
        return [Drop("zero_variance", f"all {len(members)} rewards are {rewards[0] if rewards else 'missing'}")]
