"""Names that an extension may still use are the new ones."""

from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
import torch

from headrace.consumers.algorithms.contract import Candidate
from headrace.schemas.records import Trajectory, TrajectoryGroup
from headrace.trainers.advantages import RewardedSequence, iterate_comparisons
from headrace.trainers.losses import TrainedTokens

RENAMED = (
    ("headrace.consumers.algorithms.contract", "Again", "Replay"),
    ("headrace.consumers.algorithms.replay", "Replay", "ReplayMemory"),
    ("headrace.producers.feed.selectors.draws", "Draws", "HashedDraws"),
    ("headrace.envs.answers", "same", "is_same_answer"),
    ("headrace.envs.contract", "number", "check_number"),
    ("headrace.envs.transcript", "merged", "merge_runs"),
    ("headrace.trainers.advantages", "compared", "iterate_comparisons"),
    ("headrace.trainers.advantages", "Member", "RewardedSequence"),
)


@pytest.mark.parametrize(("module", "old", "new"), RENAMED)
def test_an_old_name_is_the_new_one_and_warns(module: str, old: str, new: str) -> None:
    found = importlib.import_module(module)

    with pytest.warns(DeprecationWarning, match=f"{module}.{old} is deprecated: use {new}"):
        assert getattr(found, old) is getattr(found, new)


@pytest.mark.parametrize("module", [module for module, _, _ in RENAMED])
def test_a_name_that_never_was_is_missing_as_in_any_module(module: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Never'"):
        _ = importlib.import_module(module).Never


def test_an_old_name_of_a_method_or_a_field_works_and_warns() -> None:
    candidate = Candidate.of(TrajectoryGroup(trajectories=(Trajectory(),)))
    tokens = TrainedTokens(torch.zeros(1), torch.ones(1), torch.zeros(1), torch.zeros(1, dtype=torch.int64))

    with pytest.warns(DeprecationWarning, match="shaped is deprecated: use Candidate.with_shaped_rewards"):
        assert candidate.shaped([0.5]) == candidate.with_shaped_rewards([0.5])
    with pytest.warns(DeprecationWarning, match="behaviour is deprecated: use TrainedTokens.behaviour_logprobs"):
        assert tokens.behaviour is tokens.behaviour_logprobs
    [compared] = iterate_comparisons([RewardedSequence(0, "", 1.0)], "task", "trajectory")
    with pytest.warns(DeprecationWarning, match="members is deprecated: use ComparedValues.sequences"):
        assert compared.members is compared.sequences
    with pytest.warns(DeprecationWarning, match="behaviour is deprecated: use TrainedTokens.behaviour_logprobs"):
        assert replace(tokens, behaviour=torch.zeros(1)).behaviour_logprobs.tolist() == [0.0]  # type: ignore[call-arg]
