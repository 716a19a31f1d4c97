"""What `headrace retrain` says before it trains anything."""

from __future__ import annotations

import pytest

from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ops.offline import retrain as retraining
from headrace.schemas.records import BatchTrained, CheckpointPointer
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
