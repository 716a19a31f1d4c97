"""Prefers shorter right answers."""

from __future__ import annotations

import math
from collections.abc import Iterable

from headrace.consumers.algorithms.contract import Candidate, Keep, Result, Stateless, generated_lengths
from headrace.infra.recipe.ranges import above, finite


class KimiLength(Stateless):
    """Add lambda_i = 0.5 - (L_i - L_min) / (L_max - L_min) to right trajectories, min(0, lambda_i) to wrong ones.

    L is the number of generated tokens, over the members that count; equal lengths add nothing. A trajectory is right
    if its unshaped reward is above `right_above`; `weight` multiplies the addition. Source: Kimi k1.5 (arXiv
    2501.12599).
    """

    def __init__(self, right_above: float = 0.0, weight: float = 1.0) -> None:
        finite(right_above=right_above)
        above(0, weight=weight)
        self._right_above = right_above
        self._weight = weight

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:  # noqa: ARG002 - the protocol's
        """Compare the members' lengths."""
        members = candidate.group.trajectories
        lengths = generated_lengths(candidate.group)
        counted = [length for length, r in zip(lengths, candidate.rewards, strict=False) if not math.isnan(r)]
        shortest, longest = min(counted, default=0), max(counted, default=0)
        if shortest == longest:
            return [Keep(candidate)]
        rewards = []
        for reward, member, length in zip(candidate.rewards, members, lengths, strict=False):
            bonus = 0.5 - (length - shortest) / (longest - shortest)
            right = member.reward > self._right_above
            rewards.append(reward + self._weight * (bonus if right else min(0.0, bonus)))
        return [Keep(candidate.with_shaped_rewards(rewards))]
