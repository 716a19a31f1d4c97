"""An advantage and a loss."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from headrace.trainers.advantages import Advantages, Member
from headrace.trainers.losses.ppo import ppo
from headrace.trainers.losses.tokens import TokenLoss, TrainedTokens


def centred(members: Sequence[Member], *, scale: float = 1.0) -> Advantages:
    """Return rewards less the mean of their group."""
    rewards: defaultdict[int, list[float]] = defaultdict(list)
    for member in members:
        rewards[member.group].append(member.reward)
    means = {group: sum(found) / len(found) for group, found in rewards.items()}
    return np.array([scale * (member.reward - means[member.group]) for member in members], np.float32)


def weighted(tokens: TrainedTokens) -> TokenLoss:
    """Return what PPO returns."""
    return ppo(tokens)
