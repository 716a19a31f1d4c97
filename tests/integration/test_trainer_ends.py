"""A trainer that is stopped while versions are under way, and what its successor finds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Self

import pytest
from made_run import make_run, tiny_recipe
from stoppable import until
from tcp_proxy import TcpProxy
from trained_run import batches, curated, feed, published

from headrace.infra.kafka.run_loop import run_loop
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.run.run import Run
from headrace.infra.stopwatch import Stopwatch
from headrace.infra.store.object_store import ObjectStore, StoreAddress
from headrace.infra.weights.tensors import hash_weights
from headrace.schemas.records import WeightsPublished
from headrace.trainers import trainer as trainer_module
from headrace.trainers.start import begin_or_resume
from headrace.trainers.trainer import Trainer
from headrace.trainers.versions.resume import ResumedTrainer
from headrace.trainers.versions.step_note import open_step_note

POLICY = "solver"
BEGUN = 3
"""Versions under way when the trainer is told to stop."""
Publish = Callable[..., WeightsPublished]


@pytest.fixture
def between(store_address: StoreAddress) -> Iterator[TcpProxy]:
    with TcpProxy(store_address.endpoint) as proxy:
        yield proxy


@pytest.fixture
def run(bootstrap: str, store_address: StoreAddress, between: TcpProxy, run_name: str) -> Iterator[Run]:
    """A run whose store is behind the proxy, with groups for some versions."""
    trainer = {"steps": 9, "groups_per_batch": 4, "minibatches": 1, "max_staleness": 20, "checkpoint_every": 9}
    with ObjectStore(replace(store_address, prefix=f"{run_name}/", endpoint=between.address)) as store:
        run = make_run(bootstrap, store, tiny_recipe(run_name, trainer=trainer, kafka={"partitions": 1}))
        feed(run, [curated(number, stale=100) for number in range(4 * BEGUN)])
        yield run


@dataclass
class Life:
    """One trainer, driven in a thread of the test; its publications wait at a gate."""

    run: Run
    gate: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)
    begun: list[int] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        assert self._ready.wait(120)
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self.end()

    def end(self) -> None:
        """Tell it to stop, and wait until it has."""
        self.stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()

    def _live(self) -> None:
        name = f"{self.run.address.run}.train.{POLICY}"
        with closing(TransactionalWriter(self.run.connection, name, self.run.topic_names)) as writer:
            self.resumed: ResumedTrainer = begin_or_resume(self.run, POLICY, writer, self.stop)
            self._wait_at_the_gate(self.resumed.uploader.upload_version)
            note = open_step_note(self.run, POLICY)
            with closing(Trainer(self.run, POLICY, self.resumed, Stopwatch(), note)) as trainer:
                self._ready.set()
                if run_loop(trainer, writer, self.stop, Stopwatch()):
                    run_loop(trainer, writer, trainer.stop_new_steps(), Stopwatch())

    def _wait_at_the_gate(self, publish: Publish) -> None:
        def gated(*args: object, **more: object) -> WeightsPublished:
            self.begun.append(self.resumed.learner.version)
            assert self.gate.wait(120)
            return publish(*args, **more)

        self.resumed.uploader.upload_version = gated  # type: ignore[method-assign]

    def steps_all(self) -> None:
        """Wait until the learner has made what there are groups for, and the first of it is being published."""
        until(lambda: bool(self.begun) and self.resumed.learner.version == BEGUN, "the versions are made")


def test_versions_that_are_made_when_the_trainer_is_told_to_stop_are_committed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "FINISH_S", 100)
    with Life(run) as life:
        life.steps_all()
        assert not batches(run)
        life.stop.set()
        life.gate.set()
    assert [batch.version for batch in batches(run)] == [1, 2, 3]
    assert [event.version for event in published(run)] == [0, 1, 3], "the newest is published, the overtaken left out"


@pytest.mark.training
def test_versions_that_take_too_long_are_dropped_and_made_again_to_the_same_bits(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "FINISH_S", 0.1)
    with Life(run) as life:
        life.steps_all()
        made = hash_weights(life.resumed.learner.snapshot_weights())
        life.end()
        assert not batches(run)
    monkeypatch.setattr(trainer_module, "FINISH_S", 100)
    with Life(run) as life:
        life.gate.set()
        life.steps_all()
    assert [batch.version for batch in batches(run)] == [1, 2, 3]
    assert batches(run)[-1].weights_hash == made
