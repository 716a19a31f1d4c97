"""From a curated group to the sequences that the learner trains on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infra.settings import Trainer
from schemas.records import CuratedGroup, Sequence, TrajectoryGroup
from trainers.advantages import Member, grpo
from trainers.batch import BatchError, TrainingSequence


@dataclass(frozen=True, slots=True)
class WholeGroup:
    """A curated group with its trajectories decoded."""

    curated: CuratedGroup
    group: TrajectoryGroup


def training_sequences(whole: WholeGroup, settings: Trainer) -> list[TrainingSequence]:
    """Return the kept sequences with their advantages.

    Statistics are taken over all members, kept or not, but for those that validation refused, whose curated reward is
    NaN. A sequence's own reward serves where the workflow set one, else its trajectory's shaped reward.

    Raises BatchError and RewardError for what cannot be trained on.
    """
    kept, count = set(whole.curated.kept), len(whole.group.trajectories)
    if len(whole.curated.rewards) != count or not kept <= set(range(count)):
        raise BatchError(
            f"{count} trajectories, {len(whole.curated.rewards)} rewards, kept {sorted(kept)[:8]}: these do not belong "
            "together"
        )
    members: list[Member] = []
    sequences: list[Sequence] = []
    for number, trajectory in enumerate(whole.group.trajectories):
        if math.isnan(whole.curated.rewards[number]):
            continue
        for sequence in trajectory.sequences:
            reward = whole.curated.rewards[number] if sequence.reward is None else sequence.reward
            members.append(Member(number, sequence.role, reward))
            sequences.append(sequence)
    advantages = grpo(members, group_by=settings.group_by, weight=settings.weight)
    return [
        _training_sequence(sequence, float(advantage))
        for sequence, member, advantage in zip(sequences, members, advantages, strict=True)
        if member.trajectory in kept
    ]


def _training_sequence(sequence: Sequence, advantage: float) -> TrainingSequence:
    temperatures = {s.sampling.temperature for s in sequence.spans if s.kind == "generated" and s.sampling}
    return TrainingSequence(
        ids=sequence.ids,
        mask=loss_mask(sequence),
        behaviour_logprobs=sequence.logprobs,
        versions=token_versions(sequence),
        advantage=advantage,
        temperature=temperatures.pop() if len(temperatures) == 1 else 1.0,
    )


def loss_mask(sequence: Sequence) -> npt.NDArray[np.bool_]:
    """Return bool[T], True on generated spans. Raises BatchError when the spans do not cover the ids."""
    kinds = np.array([span.kind == "generated" for span in sequence.spans], np.bool_)
    return np.repeat(kinds, _covering([span.length for span in sequence.spans], sequence.ids.size, "spans"))


def token_versions(sequence: Sequence) -> npt.NDArray[np.int32]:
    """Return int32[T], the version of each token; -1 where nothing was generated. Raises BatchError as `loss_mask`."""
    versions, lengths = sequence.version_runs[::2], sequence.version_runs[1::2].tolist()
    if len(versions) != len(lengths):
        raise BatchError(f"{sequence.version_runs.size} numbers are no pairs of version and run length")
    return np.repeat(versions, _covering(lengths, sequence.ids.size, "version runs"))


def _covering(lengths: list[int], total: int, what: str) -> list[int]:
    """Return lengths that add up to a total; any others would have memory allocated for what is not there."""
    if min(lengths, default=0) < 0 or sum(lengths) != total:
        raise BatchError(f"{len(lengths)} {what} add up to {sum(lengths)}, not to the {total} ids")
    return lengths
