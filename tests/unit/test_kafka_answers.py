"""Answers of a broker that cannot be true are not taken for an empty topic; a run that it lacks is named."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.infra.kafka import cluster_topics, topic_offsets
from headrace.infra.kafka.clients import Connection, KafkaAway, KafkaRefused, RunAddress, open_producer, translate_error
from headrace.infra.kafka.cluster_topics import NotLetIn
from headrace.infra.kafka.topic_offsets import fetch_end_offsets, fetch_partition_count
from headrace.infra.kafka.topic_reader import describe_behind
from headrace.infra.process.signals import StopRequested
from headrace.infra.run import run
from headrace.infra.run.run import NoSuchRun, join

CONNECTION = Connection("127.0.0.1:1")


def answering(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> None:
    monkeypatch.setattr(topic_offsets, "get_admin", lambda _connection: SimpleNamespace(**answers))


def test_a_topic_without_partitions_is_a_broker_that_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = SimpleNamespace(error=None, partitions={})
    answering(monkeypatch, list_topics=lambda *_, **__: SimpleNamespace(topics={"weights": topic}))

    with pytest.raises(KafkaAway, match="no partitions"):
        fetch_partition_count(CONNECTION, "weights")


def test_an_end_that_is_not_known_is_a_broker_that_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    def list_offsets(asked: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        futures = {partition_id: Future[Any]() for partition_id in asked}
        for future in futures.values():
            future.set_result(SimpleNamespace(offset=-1))
        return futures

    answering(monkeypatch, list_offsets=list_offsets)

    with pytest.raises(KafkaAway, match=r"weights\[0\]"):
        fetch_end_offsets(CONNECTION, [("weights", 0)])


def test_who_joins_a_run_that_is_not_there_is_told_which_runs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = dict.fromkeys(["a.recipe", "a.workers", "b.recipe", "elsewhere"])

    def list_topics(**_: Any) -> Any:
        """Take no topic's name: asking for one by its name may create it."""
        return SimpleNamespace(topics=topics)

    monkeypatch.setattr(cluster_topics, "get_admin", lambda _connection: SimpleNamespace(list_topics=list_topics))
    address = RunAddress(CONNECTION, "nosuch")

    with pytest.raises(NoSuchRun, match=r"no run 'nosuch' on 127\.0\.0\.1:1: the runs there are a, b$"):
        join(address)

    stop = threading.Event()
    stop.set()
    with pytest.raises(StopRequested, match="while waiting for the run"):
        join(address, 60, stop)


MOCKED = Connection("127.0.0.1:1", {"test.mock.num.brokers": "1", "message.timeout.ms": "2000"})
"""A cluster inside of librdkafka, which makes topics of which a client asks, as Kafka does by default."""


def test_a_topic_that_is_not_there_is_not_made_by_who_writes_to_it_or_asks_for_it() -> None:
    reports: list[KafkaError | None] = []
    producer = open_producer(MOCKED, "check", topic_metadata_propagation_max_ms=100)
    producer.produce("gone", b"record", on_delivery=lambda error, _: reports.append(error))
    producer.flush(10)
    [error] = reports
    assert error is not None
    assert error.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
    assert "gone" not in producer.list_topics(timeout=5).topics


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (KafkaError.UNKNOWN, KafkaAway, "Kafka cannot do this now"),
        (
            KafkaError._MAX_POLL_EXCEEDED,
            KafkaRefused,
            "raise max.poll.interval.ms in kafka.client",
        ),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaRefused, "Kafka answers TOPIC_AUTHORIZATION_FAILED"),
    ],
)
def test_an_answer_is_waited_for_or_begun_anew_after_or_refused(code: int, kind: type[Exception], said: str) -> None:
    found = translate_error(KafkaException(KafkaError(code)), "reading")
    assert type(found) is kind
    assert said in str(found)


class Noted(threading.Event):
    """Notes the pauses, which take no time; set after the eighth."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0.0)
        if len(self.pauses) == 8:
            self.set()
        return False


@pytest.mark.parametrize(
    ("error", "pauses"),
    [(NotLetIn("a wrong password"), [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]), (NoSuchRun("not yet"), [0.2] * 8)],
)
def test_who_is_not_let_in_asks_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, error: Exception, pauses: list[float]
) -> None:
    def refuse(_address: RunAddress) -> Any:
        raise error

    monkeypatch.setattr(run, "_join", refuse)
    stop = Noted()
    with pytest.raises(StopRequested):
        join(RunAddress(CONNECTION, "a"), 60, stop)
    assert stop.pauses == pytest.approx(pauses)


def test_what_is_not_read_to_its_end_is_named_with_where_it_is_and_where_it_ends() -> None:
    said = describe_behind({("a", 0): 3, ("a", 1): 9, ("b", 0): 0}, {("a", 0): 9, ("a", 1): 9, ("b", 0): 1})
    assert said == "a[0] was read up to offset 3 and ends at 9, b[0] was read up to offset 0 and ends at 1"
