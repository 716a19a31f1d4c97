"""Reading a topic to its end, whatever the broker says of that end just after it has come back."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import NewTopic

from headrace.infra.kafka import topic_reader
from headrace.infra.kafka.clients import Connection, open_admin, open_consumer, open_producer
from headrace.infra.kafka.topic_reader import Place, TopicReader, read_all

LIMIT_S = 15.0
TEN = [b"%d" % number for number in range(10)]


def of_ten_records(bootstrap: str, topic: str, partition: int) -> Connection:
    """Make a topic whose last partition holds ten records; return the connection to it."""
    connection = Connection(bootstrap)
    open_admin(connection).create_topics([NewTopic(topic, partition + 1, 1)])[topic].result()
    producer = open_producer(connection, "writer")
    for value in TEN:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0
    return connection


def test_a_false_end_does_not_make_a_topic_look_empty(
    bootstrap: str, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = of_ten_records(bootstrap, run_name, 1)

    def nothing(_: Connection, places: Iterable[Place]) -> dict[Place, int]:
        return dict.fromkeys(places, 0)

    monkeypatch.setattr(topic_reader, "end_offsets", nothing)
    assert [message.value for message in read_all(connection, [run_name])] == TEN


def test_a_topic_on_which_no_fetch_finds_the_end_is_read_to_the_end_it_had(
    bootstrap: str, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where more is always written before the next fetch."""
    connection = of_ten_records(bootstrap, run_name, 0)

    def never_at_the_end(connection: Connection, name: str, **_: bool) -> Consumer:
        return open_consumer(connection, name)

    monkeypatch.setattr(topic_reader, "open_consumer", never_at_the_end)
    with TopicReader(connection, {(run_name, 0): 0}) as reader:
        assert [message.value for message in reader.catch_up(LIMIT_S)] == TEN
