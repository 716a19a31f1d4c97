"""Answers of a broker that cannot be true are not taken for an empty topic."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from infra import kafka
from infra.kafka import Connection, KafkaAway, end_offsets, partitions_of

CONNECTION = Connection("127.0.0.1:1")


def answering(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> None:
    monkeypatch.setattr(kafka, "open_admin", lambda _connection: SimpleNamespace(**answers))


def test_a_topic_without_partitions_is_a_broker_that_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = SimpleNamespace(error=None, partitions={})
    answering(monkeypatch, list_topics=lambda *_, **__: SimpleNamespace(topics={"weights": topic}))

    with pytest.raises(KafkaAway, match="no partitions"):
        partitions_of(CONNECTION, "weights")


def test_an_end_that_is_not_known_is_a_broker_that_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    def list_offsets(asked: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        futures = {place: Future[Any]() for place in asked}
        for future in futures.values():
            future.set_result(SimpleNamespace(offset=-1))
        return futures

    answering(monkeypatch, list_offsets=list_offsets)

    with pytest.raises(KafkaAway, match=r"weights\[0\]"):
        end_offsets(CONNECTION, [("weights", 0)])
