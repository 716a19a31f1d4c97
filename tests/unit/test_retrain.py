"""What `headrace retrain` says before it trains anything."""

from __future__ import annotations

from typing import Any

import pytest
from made_recipes import sums_recipe

from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ops.offline import experiment as experiments
from headrace.ops.offline import retrain as retraining
from headrace.schemas.records import BatchTrained, CheckpointPointer, RecipeRevision
from headrace.trainers.learner.numerics import fingerprint_numerics
from headrace.trainers.versions.history import History


def test_of_what_two_processes_made_one_says_at_once_that_it_cannot_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("arithmetic")
    run = Run(RunAddress(Connection("127.0.0.1:1"), "r"), "r-1", (recipe,), StoreAddress("127.0.0.1:2", "b", "k", "s"))
    made = {**fingerprint_numerics("cpu"), "threads": "1", "backend": "fsdp of 2"}
    past = History(
        checkpoints={0: CheckpointPointer(policy="solver")},
        batches=[BatchTrained(version=version, fingerprint=made, weights_hash=f"w{version}") for version in (1, 2)],
    )
    monkeypatch.setattr(retraining, "read_history", lambda _run, _policy: past)
    monkeypatch.setattr(retraining, "restore_learner", lambda *_given: pytest.fail("a learner was made"))

    def tell(_done: float, _total: float | None) -> None:
        pytest.fail("it told of a version trained again")

    found = retraining.retrain(run, None, (None, None), tell)

    assert not found.comparable
    assert list(found.differing) == ["backend: fsdp of 2 -> none"]
    assert [one.got for one in found.versions] == [None, None]


@pytest.mark.parametrize(
    ("checkpoints", "newest", "span", "why"),
    [
        ((0,), 0, (5, None), "solver has no version to train again yet: none is newer than 0, its oldest checkpoint"),
        (
            (0, 4),
            4,
            (9, None),
            "--from 9 is above 4, the newest version of solver. Training begins at the newest checkpoint",
        ),
        ((0, 4), 4, (4, None), "solver has no version after its checkpoint of version 4: give a lower --from"),
        ((2, 4), 4, (1, None), "solver has no checkpoint at or below --from 1: give --from 2, its oldest checkpoint"),
    ],
)
def test_versions_that_cannot_be_made_again_are_refused_with_those_that_can(
    checkpoints: tuple[int, ...], newest: int, span: retraining.VersionSpan, why: str
) -> None:
    past = History(
        checkpoints={version: CheckpointPointer(version=version) for version in checkpoints},
        batches=[BatchTrained(version=version) for version in range(1, newest + 1)],
    )
    with pytest.raises(UsageError, match=why):
        retraining.cut_into_stretches(past, span, "solver")


@pytest.mark.parametrize(
    ("policy", "word"),
    [
        ("solver.slow", "shadows.slow.trainer.learning_rate=1e-4"),
        ("judge", "policies.judge.trainer.learning_rate=1e-4"),
    ],
)
def test_an_experiment_with_what_a_later_revision_added_leaves_the_earlier_ones_as_they_are(
    policy: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    policies = {"solver": {"path": "x"}, "judge": {"path": "y"}}
    later = sums_recipe(policies=policies, shadows={"slow": {"policy": "solver", "trainer": {"loss": "ppo"}}})
    address, store = RunAddress(Connection("127.0.0.1:1"), "t"), StoreAddress("127.0.0.1:2", "b", "k", "s")
    run = Run(address, "r", (sums_recipe(), later), store)
    written: list[RecipeRevision] = []
    does: dict[str, Any] = {
        "read_known_revisions": lambda _address: [],
        "read_revisions": lambda _address: [RecipeRevision("r", store="elsewhere")],
        "ensure_topics": lambda *_: None,
        "write_revision": lambda _connection, _topic, revision: written.append(revision),
        "join": lambda _address: run,
    }
    for name, do in does.items():
        monkeypatch.setattr(experiments, name, do)

    experiments._prepare_run(run, policy, "other", [word])

    assert [(one.revision, Recipe.from_json(one.recipe).name) for one in written] == [(0, "other"), (1, "other")]
    first, second = (Recipe.from_json(one.recipe) for one in written)
    assert first.policy_variants == ("solver",)
    assert second.trainer_of(policy).learning_rate == 1e-4
