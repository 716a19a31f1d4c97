"""Builds a curator's records of groups: outcomes, and curated records of first uses and replays."""

from __future__ import annotations

from dataclasses import replace

from headrace.consumers.algorithms.contract import Candidate, Rejection, Replay, generated_lengths
from headrace.schemas.digests import compute_digest
from headrace.schemas.episode_errors import group_errors
from headrace.schemas.headers import Stamp
from headrace.schemas.ids import LONGEST_NAME
from headrace.schemas.records import CuratedGroup, Outcome, TrajectoryGroup


def build_stamp(candidate: Candidate) -> Stamp:
    """Return key and headers of a group's first curated record."""
    group = candidate.group
    return Stamp(
        run_id=group.run_id,
        stream=group.stream,
        number=group.number,
        attempt=group.attempt,
        revision=group.revision,
        policy=group.policy,
        min_version=candidate.min_version,
        max_version=candidate.max_version,
        head_version=group.head_version,
    )


def build_curated(candidate: Candidate, value: bytes, max_staleness: int) -> CuratedGroup:
    """Return the curated record of a kept group; `value` is the group as its worker wrote it."""
    group = candidate.group
    return CuratedGroup(
        run_id=group.run_id,
        stream=group.stream,
        number=group.number,
        group=value,
        deadline_version=candidate.min_version + max_staleness,
        min_version=candidate.min_version,
        revision=group.revision,
        kept=candidate.kept,
        rewards=candidate.rewards,
    )


def build_replay(replay: Replay, stamp: Stamp, first_back: int) -> CuratedGroup:
    """Return the curated record of a replay."""
    return CuratedGroup(
        run_id=stamp.run_id,
        stream=stamp.stream,
        number=stamp.number,
        use=stamp.use,
        deadline_version=replay.deadline_version,
        min_version=replay.min_version,
        revision=stamp.revision,
        first_back=first_back,
        weight=replay.weight,
    )


def build_group_outcome(policy: str, candidate: Candidate, value: bytes) -> Outcome:
    """Return the outcome of a group, without its verdict; `value` is the group as its worker wrote it."""
    group = candidate.group
    return Outcome(
        run_id=group.run_id,
        stream=group.stream,
        number=group.number,
        policy=policy,
        component="curate",
        revision=group.revision,
        task_id=group.task_id,
        tier=group.tier,
        rewards=tuple(trajectory.reward for trajectory in group.trajectories),
        lengths=generated_lengths(group),
        n_asked=group.n_asked,
        failures=len(group.failures),
        errors=group_errors(group.errors),
        min_version=candidate.min_version,
        max_version=candidate.max_version,
        head_version=group.head_version,
        group_digest=compute_digest(value),
    )


def build_replay_outcome(stamp: Stamp) -> Outcome:
    """Return the outcome of a replay; the outcome of the first use describes the group."""
    return Outcome(
        run_id=stamp.run_id,
        stream=stamp.stream,
        number=stamp.number,
        use=stamp.use,
        policy=stamp.policy,
        verdict="kept",
        component="curate",
        revision=stamp.revision,
        min_version=stamp.min_version,
        max_version=stamp.max_version,
        head_version=stamp.head_version,
    )


def build_rejection_outcome(outcome: Outcome, group: TrajectoryGroup, rejection: Rejection) -> Outcome:
    """Return the outcome of a rejected trajectory, from the outcome of its group."""
    return replace(
        outcome,
        level="trajectory",
        trajectory_id=group.trajectories[rejection.index].id[:LONGEST_NAME],
        verdict="dropped",
        reason=rejection.reason,
        rewards=(outcome.rewards[rejection.index],),
        lengths=(outcome.lengths[rejection.index],),
        errors=(),
        group_digest="",
    )
