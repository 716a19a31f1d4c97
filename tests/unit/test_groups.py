"""From curated groups to training sequences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from infra.settings import Trainer
from schemas.records import CuratedGroup, Sampling, Sequence, Span, Trajectory, TrajectoryGroup
from trainers.groups import WholeGroup, loss_mask, token_versions, training_sequences


def sequence(role: str = "", reward: float | None = None, temperature: float = 0.7) -> Sequence:
    return Sequence(
        ids=np.array([4, 5, 6, 7, 8, 1], np.int32),
        logprobs=np.array([0, 0, -1, 0, -0.5, -0.25], np.float32),
        version_runs=np.array([-1, 2, 3, 1, -1, 1, 4, 2], np.int32),
        role=role,
        reward=reward,
        spans=(
            Span("prompt", 2),
            Span("generated", 1, sampling=Sampling(temperature)),
            Span("observation", 1),
            Span("generated", 2, sampling=Sampling(temperature)),
        ),
    )


def whole(rewards: tuple[float, ...], kept: tuple[int, ...], *sequences: tuple[Sequence, ...]) -> WholeGroup:
    members = sequences or tuple((sequence(),) for _ in rewards)
    trajectories = tuple(Trajectory(str(i), r, {}, s) for i, (r, s) in enumerate(zip(rewards, members, strict=True)))
    return WholeGroup(CuratedGroup(kept=kept, rewards=rewards), TrajectoryGroup(trajectories=trajectories))


def test_the_mask_is_true_on_generated_spans_only_and_versions_follow_their_runs() -> None:
    assert loss_mask(sequence()).tolist() == [False, False, True, False, True, True]
    assert token_versions(sequence()).tolist() == [-1, -1, 3, -1, 4, 4]


def test_statistics_are_over_all_members_but_only_the_kept_are_trained() -> None:
    rewards = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    found = training_sequences(whole(rewards, (0, 1)), Trainer())
    assert [s.advantage for s in found] == pytest.approx([1.62015, -0.54005], abs=1e-5)
    assert {s.temperature for s in found} == {0.7}


def test_what_validation_refused_is_left_out_of_the_statistics() -> None:
    found = training_sequences(whole((1.0, math.nan, 0.0), (0, 2)), Trainer())
    assert [s.advantage for s in found] == pytest.approx([0.70710, -0.70710], abs=1e-4)


def test_sequences_with_rewards_of_their_own_are_compared_within_their_role() -> None:
    members = (
        (sequence("solver", 0.0), sequence("solver", 1.0)),
        (sequence("solver", 1.0), sequence("verifier", 0.5)),
    )
    settings = Trainer(group_by="task+role", weight="sequence")
    found = training_sequences(whole((1.0, 1.0), (0, 1), *members), settings)
    assert [s.advantage for s in found] == pytest.approx([-1.15468, 0.57734, 0.57734, 0.0], abs=1e-4)
