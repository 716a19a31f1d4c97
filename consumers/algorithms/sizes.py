"""Decides when a group is too small to be trained on."""

from __future__ import annotations

import math

from headrace.consumers.algorithms.contract import Candidate, Drop, Keep
from headrace.schemas.records import TrajectoryGroup

SMALLEST_GROUP = 2
"""Least number of rewards in a group, because a single trajectory has nothing to compare with."""


def is_single(group: TrajectoryGroup) -> bool:
    """Return whether the task asked for only one trajectory, for an estimator that does not compare."""
    return group.n_asked == 1


def drop_if_nothing_left(candidate: Candidate) -> Drop | None:
    """Return the Drop of a group without trajectories, with the group's own reason; else None."""
    group = candidate.group
    if group.trajectories:
        return None
    return Drop(group.reason or "no_trajectories", f"{len(group.failures)} of {group.n_asked} failed")


def keep_or_drop(candidate: Candidate, reason: str) -> Keep | Drop:
    """Keep a group with something to train on and at least two rewards that count; else drop it for `reason`.

    One reward is enough if the task asked for one trajectory. Rewards of failed episodes count if the chain says so.
    """
    rewards = candidate.rewards
    counted = len(rewards)
    if not math.isfinite(sum(rewards)):  # the only check of each reward if all rewards count
        counted -= sum(map(math.isnan, rewards))
    if candidate.kept and counted >= (1 if is_single(candidate.group) else SMALLEST_GROUP):
        return Keep(candidate)
    rejected = "; ".join(f"{r.index}: {r.reason}, {r.detail}" for r in candidate.rejected) or "no other survived"
    return Drop(
        reason, f"{len(candidate.kept)} of {len(candidate.group.trajectories)} trajectories are left ({rejected})"
    )
