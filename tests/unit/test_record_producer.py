"""What a worker's producer returns of records that Kafka refuses; a stand-in for librdkafka's producer answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from fatal import raise_no_exception
from patience import PATIENCE_S

from headrace.infra.environment import END_REPORT_VARIABLE
from headrace.infra.kafka.clients import Connection, KafkaRefused, Outgoing
from headrace.infra.process.end_report import read_end
from headrace.infra.stopwatch import Stopwatch
from headrace.producers.rollout import record_producer
from headrace.producers.rollout.record_producer import RecordProducer


class Refusing:
    """Takes what is small, and answers at once."""

    def produce(self, _topic: str, value: bytes, *_given: object, on_delivery: Any, **_named: object) -> None:
        error = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) if len(value) > 4 else None
        on_delivery(error, SimpleNamespace(offset=lambda: 7))

    def poll(self, _timeout_s: float) -> int:
        return 0

    def purge(self) -> None:
        pass

    def __len__(self) -> int:
        return 0


def test_a_record_that_is_refused_comes_back_with_the_reason_and_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_producer, "open_producer", lambda *_, **__: Refusing())
    producer = RecordProducer(Connection("nowhere:1"), "worker", Stopwatch())
    small, large = Outgoing("t", b"tiny"), Outgoing("t", b"large")
    [(record, why)] = asyncio.run(producer.send([small, large, small]))
    producer.close()
    assert record is large
    assert isinstance(why, KafkaRefused)
    assert "MSG_SIZE_TOO_LARGE" in str(why)


FATAL = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "records are missing", True)


def raise_exception(error: KafkaError) -> None:
    raise KafkaException(error)


def break_off(_error: KafkaError) -> None:
    raise SystemError("records are missing")


@pytest.mark.parametrize("call", ["poll", "flush"])
@pytest.mark.parametrize("fail", [raise_exception, raise_no_exception, break_off])
def test_a_process_whose_client_can_send_no_more_ends_with_the_reason_and_as_no_failure_of_its_own(
    fail: Callable[[KafkaError], None], call: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class FailedOnce(Refusing):
        failures = 0

        def poll(self, _timeout_s: float) -> int:
            return self._fail_once("poll")

        def flush(self, _timeout_s: float) -> int:
            return self._fail_once("flush")

        def _fail_once(self, name: str) -> int:
            if name == call and not self.failures:
                self.failures = 1
                fail(FATAL)
            return 0

    exits = SimpleQueue[int]()
    monkeypatch.setenv(END_REPORT_VARIABLE, str(tmp_path / "worker.end"))
    monkeypatch.setattr(record_producer, "open_producer", lambda *_, **__: FailedOnce())
    monkeypatch.setattr(os, "_exit", exits.put)
    producer = RecordProducer(Connection("nowhere:1"), "worker", Stopwatch())
    assert producer.flush(0) == 0
    assert exits.get(timeout=PATIENCE_S) == 75
    producer.close()
    told = read_end(tmp_path / "worker.end")
    assert told is not None
    assert told.lines == [
        "error: the Kafka client can send no more (records are missing): this process ends, and must be started again"
    ]


def test_a_lost_record_whose_topic_is_away_for_a_moment_is_sent_later(monkeypatch: pytest.MonkeyPatch) -> None:
    class Losing(Refusing):
        sent = 0

        def produce(self, _topic: str, _value: bytes, *_given: object, on_delivery: Any, **_named: object) -> None:
            self.sent += 1
            if self.sent == 2:
                raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC))
            on_delivery(None, SimpleNamespace(offset=lambda at=None if self.sent == 1 else 7: at))

    losing = Losing()
    monkeypatch.setattr(record_producer, "open_producer", lambda *_, **__: losing)
    monkeypatch.setattr(os, "_exit", pytest.fail)
    producer = RecordProducer(Connection("nowhere:1"), "worker", Stopwatch())
    producer.post(Outgoing("t", b"tiny")).result(PATIENCE_S)
    producer.close()
    assert losing.sent == 3


def test_a_process_whose_client_has_lost_every_broker_ends_to_be_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Waiting(Refusing):
        def __len__(self) -> int:
            return 1

    contact = SimpleNamespace(note_answer=pytest.fail, has_lost_brokers=lambda: True)
    monkeypatch.setattr(record_producer, "open_producer", lambda *_, **__: Waiting())
    monkeypatch.setattr(record_producer, "BrokerContact", lambda *_: contact)
    monkeypatch.setenv(END_REPORT_VARIABLE, str(tmp_path / "end"))
    exits: SimpleQueue[int] = SimpleQueue()
    monkeypatch.setattr(os, "_exit", exits.put)
    producer = RecordProducer(Connection("nowhere:1"), "worker", Stopwatch())
    assert exits.get(timeout=PATIENCE_S) == os.EX_TEMPFAIL
    producer.close()
    reported = read_end(tmp_path / "end")
    assert reported is not None
    assert "it has lost every broker, although Kafka can be reached" in reported.lines[0]


def test_a_producer_that_waits_for_nothing_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: SimpleQueue[None] = SimpleQueue()
    contact = SimpleNamespace(note_answer=lambda: noted.put(None), has_lost_brokers=pytest.fail)
    monkeypatch.setattr(record_producer, "open_producer", lambda *_, **__: Refusing())
    monkeypatch.setattr(record_producer, "BrokerContact", lambda *_: contact)
    producer = RecordProducer(Connection("nowhere:1"), "worker", Stopwatch())
    noted.get(timeout=PATIENCE_S)
    producer.close()
