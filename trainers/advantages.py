"""From the rewards of a group to one advantage per sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from infra.errors import HeadraceError

GroupBy = Literal["task", "task+role", "task+role+turn"]
Weight = Literal["trajectory", "sequence"]
Floats = npt.NDArray[np.float64]

_EQUAL = 1e-8
"""Rewards closer than this are equal: seven rewards of 0.1 must give 0, not the noise of their mean."""


_LARGEST = 1e30
"""The square of a larger reward is none that float64 holds for sure."""


class RewardError(HeadraceError):
    """A reward from which no advantage follows."""


@dataclass(frozen=True, slots=True)
class Member:
    """One sequence of a group, kept or not: statistics are taken over the complete group."""

    trajectory: int
    """Index of its trajectory within the group."""
    role: str
    reward: float
    """Its own shaped reward if the workflow set one, else its trajectory's."""
    turn: int = 0


def grpo(
    members: Sequence[Member],
    *,
    group_by: GroupBy = "task",
    weight: Weight = "trajectory",
    eps: float = 1e-5,
) -> npt.NDArray[np.float32]:
    """GRPO advantages of one group's sequences (arXiv 2402.03300): (value - mean) / (std + eps), float32[n].

    Mean and unbiased (n-1) standard deviation are taken in float64 over all members that share a key. With
    `weight = trajectory` a trajectory is one value per key, the mean of its sequences' rewards there, and all its
    sequences there get the same advantage (so no advantage exceeds (n-1)/sqrt(n)); per-sequence rewards of one
    trajectory are told apart by `weight = sequence`. A key of one value, or of equal values, gives exactly 0.
    Raises RewardError for a reward that is not finite.
    """
    advantages = np.zeros(len(members), np.float32)
    rewards = np.array([member.reward for member in members], np.float64)
    if not (np.abs(rewards) < _LARGEST).all():
        raise RewardError(
            f"a group's rewards must be finite and below {_LARGEST:g}, got {rewards.tolist()[:64]}: mend the "
            "environment's scorer"
        )
    trajectories = np.array([member.trajectory for member in members], np.int64)
    keys = _keys(members, group_by)
    for key in np.unique(keys):
        where = np.flatnonzero(keys == key)
        if weight == "sequence":
            advantages[where] = _normalised(rewards[where], eps)
        else:
            _, member_of = np.unique(trajectories[where], return_inverse=True)
            values = np.bincount(member_of, rewards[where]) / np.bincount(member_of)
            advantages[where] = _normalised(values, eps)[member_of]
    return advantages


def _keys(members: Sequence[Member], group_by: GroupBy) -> npt.NDArray[np.int64]:
    parts = {"task": (), "task+role": ("role",), "task+role+turn": ("role", "turn")}[group_by]
    numbers: dict[tuple[object, ...], int] = {}
    keys = [numbers.setdefault(tuple(getattr(m, part) for part in parts), len(numbers)) for m in members]
    return np.array(keys, np.int64)


def _normalised(values: Floats, eps: float) -> Floats:
    if len(values) < 2 or values.max() - values.min() <= _EQUAL:
        return np.zeros_like(values)
    normalised: Floats = (values - values.mean()) / (values.std(ddof=1) + eps)
    return normalised
