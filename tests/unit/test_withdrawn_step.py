"""What a trainer writes when Kafka has refused a batch's record: no group is at fault. A stand-in for the writer."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from headrace.infra.kafka.clients import KafkaRefused
from headrace.infra.process.signals import MustRestart
from headrace.infra.stopwatch import Stopwatch
from headrace.infra.store.store_errors import StoreDenied, StoreUnavailable
from headrace.trainers import train
from headrace.trainers.scheduler import NoteStep
from headrace.trainers.trainer import Trainer


class Writer:
    """A writer whose transaction is open, as after a record that the client itself refused."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.is_open, self._refuses = True, refuses
        self.written: list[object] = []
        self._under_way: list[object] = []

    def abort(self) -> None:
        self.is_open, self._under_way = False, []

    def begin(self) -> None:
        assert not self.is_open, "a transaction is open"
        self.is_open = True

    def produce(self, outgoing: list[object]) -> None:
        self._under_way += outgoing

    def commit(self) -> None:
        if self._refuses:
            raise KafkaRefused("Kafka answers MSG_SIZE_TOO_LARGE")
        self.is_open, self.written = False, [*self.written, *self._under_way]


def withdraw(step: NoteStep | None, writer: Writer) -> None:
    trainer = SimpleNamespace(
        policy_variant="p",
        scheduler=SimpleNamespace(withdraw_step=lambda: step),
        _messages=SimpleNamespace(build_step_begun=lambda *words: words),
    )
    Trainer.withdraw_step(cast("Any", trainer), cast("Any", writer))


def test_a_step_is_withdrawn_in_a_transaction_of_its_own_whatever_was_left_open() -> None:
    writer = Writer()
    withdraw(NoteStep(3, 1, 0, 4), writer)
    assert (writer.written, writer.is_open) == ([(3, 1, 4)], False)


def test_where_no_step_was_noted_nothing_is_written() -> None:
    writer = Writer()
    withdraw(None, writer)
    assert writer.written == []


def test_a_step_that_cannot_be_withdrawn_hides_no_error_that_ended_the_trainer() -> None:
    with capture_logs() as lines:
        withdraw(NoteStep(3, 1, 0, 4), Writer(refuses=True))
    assert [line["event"] for line in lines] == ["step.not_withdrawn"]


class Stopped:
    """A trainer of which a step is under way, or not."""

    def __init__(self, *, has_step_under_way: bool) -> None:
        self.has_step_under_way, self.withdrawn = has_step_under_way, 0

    def stop_new_steps(self) -> threading.Event:
        return threading.Event()

    def withdraw_step(self, _: object) -> None:
        self.withdrawn += 1


def run(trainer: Stopped, monkeypatch: pytest.MonkeyPatch, error: BaseException | None = None) -> None:
    def loop(*_: object) -> bool:
        if error is not None:
            raise error
        return True

    monkeypatch.setattr(train, "run_loop", loop)
    train.run_trainer(cast("Any", trainer), cast("Any", None), threading.Event(), Stopwatch())


def test_a_step_that_is_ended_for_no_fault_of_its_batch_is_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (KafkaRefused("too large"), StoreDenied("no right"), StoreUnavailable("away"), MustRestart("again")):
        trainer = Stopped(has_step_under_way=True)
        with pytest.raises(type(error)):
            run(trainer, monkeypatch, error)
        assert trainer.withdrawn == 1, error
    trainer = Stopped(has_step_under_way=True)
    run(trainer, monkeypatch)
    assert trainer.withdrawn == 1, "stopped, before the step had ended"


def test_a_step_that_has_ended_or_fails_by_its_batch_is_not_withdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Stopped(has_step_under_way=False)
    run(trainer, monkeypatch)
    with pytest.raises(RuntimeError):
        run(trainer, monkeypatch, RuntimeError("CUDA out of memory"))
    assert trainer.withdrawn == 0
