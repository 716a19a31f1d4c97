"""Whether a group's coordinator answers, as a consumer that never joins is told; a stand-in for Kafka's client."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.infra.kafka import group_offsets
from headrace.infra.kafka.clients import Connection
from headrace.infra.kafka.group_offsets import await_coordinator


class Consumer:
    """Answers what it is given, one after the other, and tells beside it what librdkafka tells."""

    def __init__(self, answers: list[int], told: int | None = None) -> None:
        self.answers, self.told = answers, told
        self.is_closed = False

    def committed(self, _partitions: Any, timeout: float) -> None:
        if code := self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]:
            raise KafkaException(KafkaError(code))

    def poll(self, _timeout_s: float) -> Any:
        return None if self.told is None else SimpleNamespace(error=lambda: KafkaError(self.told))

    def close(self) -> None:
        self.is_closed = True


TIMED_OUT = KafkaError._TIMED_OUT
FOR_EVER_S = 1e9


def wait(monkeypatch: pytest.MonkeyPatch, consumer: Consumer, timeout_s: float = FOR_EVER_S) -> None:
    monkeypatch.setattr(group_offsets, "open_consumer", lambda *_: consumer)
    try:
        await_coordinator(Connection("k:1"), "run.curate", timeout_s)
    finally:
        assert consumer.is_closed


def test_a_coordinator_that_is_not_there_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Consumer([TIMED_OUT, TIMED_OUT, 0])
    wait(monkeypatch, consumer)
    assert consumer.answers == [0]


@pytest.mark.parametrize(
    ("answers", "told"),
    [([TIMED_OUT], KafkaError.GROUP_AUTHORIZATION_FAILED), ([KafkaError.GROUP_AUTHORIZATION_FAILED], None)],
)
def test_a_refusal_is_an_answer(monkeypatch: pytest.MonkeyPatch, answers: list[int], told: int | None) -> None:
    wait(monkeypatch, Consumer(answers, told), timeout_s=0)


def test_what_never_answers_is_given_up_whatever_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for told in (None, KafkaError._ALL_BROKERS_DOWN):
        with pytest.raises(KafkaException):
            wait(monkeypatch, Consumer([TIMED_OUT], told), timeout_s=0)
