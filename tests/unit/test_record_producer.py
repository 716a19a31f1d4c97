"""What a worker's producer returns of records that Kafka refuses; a stand-in for librdkafka's producer answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from headrace.infra.kafka.clients import Connection, KafkaRefused, Outgoing
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


def test_a_record_that_is_refused_comes_back_with_the_reason_and_ends_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_producer, "open_producer", lambda *_, **__: Refusing())
    producer = RecordProducer(Connection("nowhere:1"), "worker", Stopwatch())
    small, large = Outgoing("t", b"tiny"), Outgoing("t", b"large")
    [(record, why)] = asyncio.run(producer.send([small, large, small]))
    producer.close()
    assert record is large
    assert isinstance(why, KafkaRefused)
    assert "MSG_SIZE_TOO_LARGE" in str(why)
