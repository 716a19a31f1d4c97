"""From a curated group to the sequences that the learner trains on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from infra.settings import Trainer
from schemas.records import CuratedGroup, Sequence, TrajectoryGroup
from trainers.advantages import Member, grpo
from trainers.batch import TrainingSequence


@dataclass(frozen=True, slots=True)
class WholeGroup:
    """A curated group with its trajectories decoded."""

    curated: CuratedGroup
    group: TrajectoryGroup


def training_sequences(whole: WholeGroup, index: int, settings: Trainer) -> list[TrainingSequence]:
    """Return the kept sequences with their advantages; `index` is the group's place in the batch.

    Statistics are taken over all members, kept or not, but for those that validation refused, whose curated reward is
    NaN. A sequence's own reward serves where the workflow set one, else its trajectory's shaped reward.
    """
    kept = set(whole.curated.kept)
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
        _training_sequence(sequence, float(advantage), index)
        for sequence, member, advantage in zip(sequences, members, advantages, strict=True)
        if member.trajectory in kept
    ]


def _training_sequence(sequence: Sequence, advantage: float, index: int) -> TrainingSequence:
    temperatures = {s.sampling.temperature for s in sequence.spans if s.kind == "generated" and s.sampling}
    return TrainingSequence(
        ids=sequence.ids,
        mask=loss_mask(sequence),
        behaviour_logprobs=sequence.logprobs,
        versions=token_versions(sequence),
        advantage=advantage,
        temperature=temperatures.pop() if len(temperatures) == 1 else 1.0,
        group=index,
    )


def loss_mask(sequence: Sequence) -> npt.NDArray[np.bool_]:
    """Return bool[T], True on generated spans."""
    kinds = np.array([span.kind == "generated" for span in sequence.spans], np.bool_)
    return np.repeat(kinds, [span.length for span in sequence.spans])


def token_versions(sequence: Sequence) -> npt.NDArray[np.int32]:
    """Return int32[T], the version of each token; -1 where nothing was generated."""
    runs = sequence.version_runs.reshape(-1, 2)
    return np.repeat(runs[:, 0], runs[:, 1])
