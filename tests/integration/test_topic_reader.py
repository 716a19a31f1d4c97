"""Reading a topic to its end, whatever the broker says of that end just after it has come back."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from itertools import islice

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from said import say
from stoppable import until

from headrace.infra.kafka import topic_reader
from headrace.infra.kafka.clients import Connection, KafkaAway, LogTruncated, Outgoing, get_admin, open_consumer
from headrace.infra.kafka.topic_admin import delete_topics, ensure_topics
from headrace.infra.kafka.topic_reader import PartitionId, TopicReader, read_all
from headrace.ops.reading import Reading
from headrace.schemas.topics import TopicSpec

LIMIT_S = 60.0
TEN = [b"%d" % number for number in range(10)]


def of_ten_records(bootstrap: str, topic: str, partition: int) -> Connection:
    """Make a topic whose last partition holds ten records; return the connection to it."""
    connection = Connection(bootstrap)
    get_admin(connection).create_topics([NewTopic(topic, partition + 1, 1)])[topic].result()
    say(connection, *(Outgoing(topic, value, partition=partition) for value in TEN))
    return connection


def test_a_false_end_does_not_make_a_topic_look_empty(
    bootstrap: str, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = of_ten_records(bootstrap, run_name, 1)

    def nothing(_: Connection, partition_ids: Iterable[PartitionId]) -> dict[PartitionId, int]:
        return dict.fromkeys(partition_ids, 0)

    monkeypatch.setattr(topic_reader, "fetch_end_offsets", nothing)
    assert [message.value for message in read_all(connection, [run_name])] == TEN


def test_a_false_end_does_not_make_a_topic_look_empty_to_the_audit(
    bootstrap: str, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = of_ten_records(bootstrap, run_name, 1)
    monkeypatch.setattr(topic_reader, "fetch_end_offsets", lambda _, partition_ids: dict.fromkeys(partition_ids, 0))
    assert [message.value for message in Reading(connection).read([run_name], "records")] == TEN


@pytest.mark.kafka
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


@pytest.mark.kafka
def test_a_partition_that_stays_hidden_ends_the_reading_although_others_bring_records_without_end(
    bootstrap: str, run_name: str
) -> None:
    """As heartbeats do, beside a transaction that never ends."""
    connection = of_ten_records(bootstrap, run_name, 1)
    hiding = Producer({"bootstrap.servers": bootstrap, "transactional.id": run_name})
    hiding.init_transactions(60)
    hiding.begin_transaction()
    hiding.produce(run_name, b"open", partition=1)
    assert hiding.flush(60) == 0

    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.01):
            say(connection, Outgoing(run_name, b"beat", partition=0))

    beats = threading.Thread(target=beat)
    beats.start()
    try:
        with (
            TopicReader(connection, {(run_name, 0): 0, (run_name, 1): 0}) as reader,
            pytest.raises(KafkaAway, match=rf"{run_name}\[1\] was read up to offset 10 and ends at 11"),
        ):
            deque(islice(reader.read_until({(run_name, 1): 11}, timeout_s=2), 1_000), maxlen=0)
    finally:
        ended.set()
        beats.join()
    hiding.abort_transaction(60)


@pytest.mark.kafka
def test_a_reader_whose_records_were_deleted_goes_on_at_the_first_that_there_is(bootstrap: str, run_name: str) -> None:
    connection = of_ten_records(bootstrap, run_name, 0)
    get_admin(connection).delete_records([TopicPartition(run_name, 0, 4)])[TopicPartition(run_name, 0)].result()

    assert [message.value for message in read_all(connection, [run_name])] == TEN[4:]


def test_a_log_that_ends_before_what_was_read_from_it_is_not_read_again_from_the_beginning(
    bootstrap: str, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "SETTLING_S", 0.5)
    connection = of_ten_records(bootstrap, run_name, 0)
    with (
        TopicReader(connection, {(run_name, 0): 25}) as reader,
        pytest.raises(LogTruncated, match=r"\[0\] ends at 10, but was read up to offset 25"),
    ):
        until(lambda: reader.poll() and None, "the error")


@pytest.mark.kafka
def test_a_log_that_is_made_anew_and_shorter_stops_whoever_was_reading_it(
    bootstrap: str, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "SETTLING_S", 0.5)
    connection = of_ten_records(bootstrap, run_name, 0)
    with TopicReader(connection, {(run_name, 0): 0}) as reader:
        assert len(list(reader.catch_up())) == 10
        delete_topics(connection, [run_name])
        ensure_topics(connection, [TopicSpec(run_name, 1)])
        with pytest.raises(LogTruncated, match=r"\[0\] ends at 0, but was read up to offset 10"):
            until(lambda: reader.poll() and None, "the error")
