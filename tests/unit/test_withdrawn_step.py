"""What a trainer writes when Kafka has refused a batch's record: no group is at fault. A stand-in for the writer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from structlog.testing import capture_logs

from headrace.infra.kafka.clients import KafkaRefused
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
