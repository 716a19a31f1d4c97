"""Groups that the trainer takes in, and an advantage of one's own that raises over them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from made_groups import group
from made_recipes import sums_recipe

from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.decoding import MessageRefused
from headrace.infra.run.run import Run
from headrace.infra.stopwatch import Stopwatch
from headrace.schemas import codec
from headrace.schemas.records import CuratedGroup
from headrace.schemas.topics import Topics
from headrace.trainers.advantages import RewardedSequence
from headrace.trainers.batches.estimator import load_estimator
from headrace.trainers.intake import MOST_FAILURES, Intake
from headrace.trainers.learner.limits import Limits


def raise_over_halves(sequences: Sequence[RewardedSequence]) -> list[float]:
    return [{0.0: -1.0, 1.0: 1.0}[one.reward] for one in sequences]


@pytest.fixture
def intake(monkeypatch: pytest.MonkeyPatch) -> Intake:
    module = ModuleType("my_credit")
    module.__dict__["mine"] = raise_over_halves
    monkeypatch.setitem(sys.modules, "my_credit", module)
    load_estimator.cache_clear()
    recipe = sums_recipe(trainer={"advantage": {"use": "my_credit:mine"}})
    run = SimpleNamespace(recipe=recipe, run_id="r", topics=Topics("r"))
    return Intake(cast("Run", run), "solver", Limits(vocabulary=100), (), Stopwatch(), lambda: 3)


def take(intake: Intake, *rewards: float) -> Any:
    whole = codec.encode(group(rewards))
    curated = CuratedGroup("r", "sums", 1, 0, whole, 5, 3, 0, tuple(range(len(rewards))), rewards)
    return intake.build_entry_or_eviction(Message("curated", 0, 1, b"", codec.encode(curated)), curated)


def test_a_group_over_which_an_own_advantage_raises_is_refused_with_its_line(intake: Intake) -> None:
    with pytest.raises(MessageRefused, match=r"mine failed: KeyError: 0\.5 at .*test_intake\.py:\d+ in ") as refused:
        take(intake, 0.5, 1.0)
    assert refused.value.reason == "unusable"
    assert take(intake, 0.0, 1.0).payload.sequences


def test_an_own_advantage_that_raises_over_each_group_ends_the_trainer(intake: Intake) -> None:
    def fail(times: int) -> None:
        for _ in range(times):
            with pytest.raises(MessageRefused):
                take(intake, 0.5, 1.0)

    fail(MOST_FAILURES - 1)
    take(intake, 0.0, 1.0)
    fail(MOST_FAILURES - 1)
    said = f"the advantage failed for {MOST_FAILURES} groups in a row; the last error: .*mine failed: KeyError"
    with pytest.raises(UsageError, match=said):  # it is not started again
        take(intake, 0.5, 1.0)


def intake_of_given_baselines(newest: int) -> Intake:
    recipe = sums_recipe(trainer={"advantage": {"use": "given"}, "groups_per_batch": 8, "minibatches": 1})
    run = SimpleNamespace(recipe=recipe, run_id="r", topics=Topics("r"))
    return Intake(cast("Run", run), "solver", Limits(vocabulary=100), (), Stopwatch(), lambda: newest)


def test_a_run_of_which_every_group_is_refused_ends_before_its_first_version() -> None:
    intake = intake_of_given_baselines(0)
    for _ in range(15):
        with pytest.raises(MessageRefused, match="needs a baseline"):
            take(intake, 0.0, 1.0)
    with pytest.raises(
        UsageError, match=r"each of the first 16 groups was refused\. The last error: .*needs a baseline"
    ):
        take(intake, 0.0, 1.0)


def test_a_run_that_has_made_a_version_is_ended_by_no_group_that_is_refused() -> None:
    intake = intake_of_given_baselines(3)
    for _ in range(40):
        with pytest.raises(MessageRefused, match="needs a baseline"):
            take(intake, 0.0, 1.0)
