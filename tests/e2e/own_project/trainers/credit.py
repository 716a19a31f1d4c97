"""An advantage and a loss."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from headrace.trainers.advantages import Advantages, RewardedSequence
from headrace.trainers.losses.ppo import ppo
from headrace.trainers.losses.tokens import TokenLoss, TrainedTokens


def centred(sequences: Sequence[RewardedSequence], *, scale: float = 1.0) -> Advantages:
    """Return rewards less the mean of their group."""
    rewards: defaultdict[int, list[float]] = defaultdict(list)
    for sequence in sequences:
        rewards[sequence.group].append(sequence.reward)
    means = {group: sum(found) / len(found) for group, found in rewards.items()}
    return np.array([scale * (sequence.reward - means[sequence.group]) for sequence in sequences], np.float32)


def weighted(tokens: TrainedTokens) -> TokenLoss:
    """Return what PPO returns."""
    return ppo(tokens)
