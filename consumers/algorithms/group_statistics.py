"""Statistics of a group's rewards that count."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from headrace.consumers.algorithms.contract import Candidate
from headrace.schemas.rewards import EQUAL

EPSILON = 1e-5
"""Added to a deviation before the division."""


def mean_and_deviation(rewards: Iterable[float]) -> tuple[float, float]:
    """Return mean and unbiased deviation of the rewards that are not NaN; (0, 0) for none, deviation 0 for one."""
    counted = [reward for reward in rewards if not math.isnan(reward)]
    if not counted:
        return 0.0, 0.0
    mean = math.fsum(counted) / len(counted)
    if len(counted) == 1 or max(counted) - min(counted) <= EQUAL:
        return mean, 0.0
    return mean, math.sqrt(math.fsum([(reward - mean) ** 2 for reward in counted]) / (len(counted) - 1))


def standardise(rewards: Sequence[float]) -> list[float]:
    """Return (r - mean) / (deviation + 1e-5), or 0 if all rewards are equal; NaN stays NaN (GRPO, 2402.03300)."""
    mean, deviation = mean_and_deviation(rewards)
    if deviation == 0:
        return [reward * 0.0 for reward in rewards]
    return [(reward - mean) / (deviation + EPSILON) for reward in rewards]


def sequence_rewards(candidate: Candidate, shaped: Sequence[float]) -> list[float]:
    """Return the rewards to compare in a group: of every sequence that counts, its own reward, else its member's.

    `shaped` are the members' rewards, followed by those of failed episodes that count. A member counts if its reward in
    the candidate is not NaN.
    """
    rewards: list[float] = []
    for index, member in enumerate(candidate.group.trajectories):
        if not math.isnan(candidate.rewards[index]):
            own = [shaped[index] if one.reward is None else one.reward for one in member.sequences]
            rewards += own or [shaped[index]]
    return [*rewards, *shaped[len(candidate.group.trajectories) :]]
