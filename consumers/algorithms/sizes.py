"""When a group has become too small to be trained on."""

from __future__ import annotations

import math

from headrace.consumers.algorithms.contract import Candidate, Drop, Keep
from headrace.schemas.records import TrajectoryGroup

SMALLEST_GROUP = 2
"""A single trajectory has nothing to be compared with."""


def is_single(group: TrajectoryGroup) -> bool:
    """Return whether a group was asked for as one trajectory, for an estimator that compares nothing."""
    return group.n_asked == 1


def drop_if_nothing_left(candidate: Candidate) -> Drop | None:
    """Return the drop of a group without trajectories, for the reason that it came with; else None."""
    group = candidate.group
    if group.trajectories:
        return None
    return Drop(group.reason or "no_trajectories", f"{len(group.failures)} of {group.n_asked} failed")


def keep_or_drop(candidate: Candidate, reason: str) -> Keep | Drop:
    """Keep a group of which something is trained on and at least two rewards count; else drop it for `reason`.

    One reward is enough where one trajectory was asked for. Rewards of failed episodes count where the chain has it so.
    """
    rewards = candidate.rewards
    counted = len(rewards)
    if not math.isfinite(sum(rewards)):  # in a group of which all count, the one look at each
        counted -= sum(map(math.isnan, rewards))
    if candidate.kept and counted >= (1 if is_single(candidate.group) else SMALLEST_GROUP):
        return Keep(candidate)
    rejected = "; ".join(f"{r.index}: {r.reason}, {r.detail}" for r in candidate.rejected) or "no other survived"
    return Drop(
        reason, f"{len(candidate.kept)} of {len(candidate.group.trajectories)} trajectories are left ({rejected})"
    )
