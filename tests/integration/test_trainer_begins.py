"""How a trainer begins: once, and from a checkpoint that holds what its pointer says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from made_run import make_run, tiny_recipe
from trained_run import published

from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.process.signals import MustRestart
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore
from headrace.trainers import start
from headrace.trainers.learner.checkpoint import CheckpointError
from headrace.trainers.versions.history import History, read_history
from headrace.trainers.versions.remake import load_learner_at

POLICY = "solver"


@pytest.fixture
def run(bootstrap: str, store: ObjectStore, run_name: str) -> Run:
    return make_run(bootstrap, store, tiny_recipe(run_name))


@pytest.fixture
def writer(run: Run) -> Iterator[TransactionalWriter]:
    with closing(TransactionalWriter(run.connection, f"{run.address.run}.train.{POLICY}")) as writer:
        yield writer


@pytest.mark.training
def test_a_past_that_was_not_to_be_seen_at_first_is_not_begun_anew(
    run: Run, writer: TransactionalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As seen once, just after a broker's restart: version 0 was published a second time."""
    begun = start.begin_or_resume(run, POLICY, writer, threading.Event())
    looks: list[str] = []

    def blind_at_first(run: Run, policy: str, *, recent: bool = False) -> History:
        looks.append(policy)
        return read_history(run, policy, recent=recent) if len(looks) > 1 else History()

    monkeypatch.setattr(start, "read_history", blind_at_first)
    with pytest.raises(MustRestart):
        start.begin_or_resume(run, POLICY, writer, threading.Event())
    assert [event.weights_hash for event in published(run)] == [begun.weights_hash]


@pytest.mark.training
def test_a_checkpoint_of_other_weights_than_its_pointer_names_is_refused(run: Run, writer: TransactionalWriter) -> None:
    begun = start.begin_or_resume(run, POLICY, writer, threading.Event())
    pointer = read_history(run, POLICY).checkpoint
    assert pointer is not None
    assert load_learner_at(run, pointer, begun.uploader.files, run.recipe).version == 0
    with pytest.raises(CheckpointError, match="does not match its record"):
        load_learner_at(run, replace(pointer, weights_hash="0" * 64), begun.uploader.files, run.recipe)
