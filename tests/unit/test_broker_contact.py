"""A client that has lost every broker is found, and replaced; one whose broker is away or slow is waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.infra.kafka import broker_contact, clients, topic_offsets, topic_reader, transactions
from headrace.infra.kafka.broker_contact import BrokerContact
from headrace.infra.kafka.clients import (
    Connection,
    Outgoing,
    build_cluster_key,
    forget_admins,
    get_admin,
    translate_error,
)
from headrace.infra.kafka.topic_offsets import fetch_end_offsets
from headrace.infra.kafka.topic_reader import TopicReader
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.process.signals import MustRestart

NOWHERE = Connection("nowhere:1")
NO_BROKER = KafkaException(KafkaError(KafkaError._TRANSPORT))
NO_ANSWER = KafkaException(KafkaError(KafkaError._TIMED_OUT))


class Client:
    """A client, and beside it an admin client: how each answers a look."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.looks = 0

    def list_topics(self, *_: Any, **__: Any) -> Any:
        self.looks += 1
        if self.fault is not None:
            raise self.fault
        return SimpleNamespace(brokers={1: "a broker"})


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Client:
    found = Client()
    monkeypatch.setattr(clients, "get_admin", lambda _: found)
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Seconds that pass at each look at the clock."""
    clock = SimpleNamespace(now=0.0, step=10.0)

    def monotonic() -> float:
        clock.now += clock.step
        return float(clock.now)

    monkeypatch.setattr(broker_contact, "time", SimpleNamespace(monotonic=monotonic))
    return clock


@pytest.mark.usefixtures("clock", "other")
def test_a_client_without_a_broker_at_two_looks_in_a_row_has_lost_all(client: Client) -> None:
    contact = BrokerContact(client, NOWHERE)
    client.fault = NO_BROKER
    assert not contact.has_lost_brokers()
    assert contact.has_lost_brokers()


@pytest.mark.usefixtures("clock", "other")
def test_a_client_that_is_just_connecting_again_has_not(client: Client) -> None:
    contact = BrokerContact(client, NOWHERE)
    for fault in (NO_BROKER, None, NO_BROKER):
        client.fault = fault
        assert not contact.has_lost_brokers()
    contact.note_answer()
    assert not contact.has_lost_brokers()


@pytest.mark.usefixtures("clock", "other")
def test_a_broker_that_is_slow_or_frozen_is_not_lost(client: Client) -> None:
    contact = BrokerContact(client, NOWHERE)
    client.fault = NO_ANSWER
    assert not any(contact.has_lost_brokers() for _ in range(5))


@pytest.mark.usefixtures("clock")
def test_a_cluster_that_nobody_reaches_is_waited_for(
    client: Client, other: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgotten: list[bool] = []
    monkeypatch.setattr(clients, "forget_admins", lambda: forgotten.append(True))
    contact = BrokerContact(client, NOWHERE)
    client.fault = other.fault = NO_BROKER
    assert not any(contact.has_lost_brokers() for _ in range(5))
    assert len(forgotten) == 5, "the other may have lost its brokers too"


@pytest.mark.usefixtures("other")
def test_a_client_that_gets_answers_is_not_looked_at(client: Client, clock: SimpleNamespace) -> None:
    contact = BrokerContact(client, NOWHERE)
    clock.step = 1.0
    for _ in range(20):
        contact.note_answer()
        assert not contact.has_lost_brokers()
    assert client.looks == 0


def test_an_admin_client_without_an_answer_is_replaced_once_it_had_time_for_its_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = Connection("nowhere:2")
    before = get_admin(connection)
    translate_error(NO_ANSWER, "asking")
    assert get_admin(connection) is before
    monkeypatch.setitem(clients._admins, build_cluster_key(connection), (before, time.monotonic() - 60))
    translate_error(KafkaException(KafkaError(KafkaError.NOT_COORDINATOR)), "asking")
    assert get_admin(connection) is before
    translate_error(NO_ANSWER, "asking")
    assert get_admin(connection) is not before
    forget_admins(older_than_s=0)


def test_an_admin_client_with_old_leader_epochs_is_replaced_however_young_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []

    def answer(connection: Connection, *_: object) -> dict[tuple[str, int], int]:
        asked.append(get_admin(connection))
        if len(asked) == 1:
            raise KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH))
        return {("t", 0): 7}

    monkeypatch.setattr(topic_offsets, "_fetch_offsets", answer)
    assert fetch_end_offsets(Connection("nowhere:3"), [("t", 0)]) == {("t", 0): 7}
    assert asked[0] is not asked[1]
    forget_admins(older_than_s=0)


@pytest.mark.usefixtures("clock", "other")
def test_a_reader_whose_client_has_lost_every_broker_reads_on_with_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    class Consumer(Client):
        def __init__(self) -> None:
            super().__init__()
            self.begins: list[int] = []
            self.closed = False

        def assign(self, partitions: list[Any]) -> None:
            self.begins = [one.offset for one in partitions]

        def consume(self, *_: object) -> list[Any]:
            return []

        def close(self) -> None:
            self.closed = True

    opened = [Consumer(), Consumer()]
    waiting = iter(opened)
    monkeypatch.setattr(topic_reader, "open_consumer", lambda *_, **__: next(waiting))
    with TopicReader(NOWHERE, {("a.weights", 0): 3}) as reader:
        reader.positions["a.weights", 0] = 7
        opened[0].fault = NO_BROKER
        reader.poll(timeout_s=0)
        assert not opened[0].closed
        reader.poll(timeout_s=0)
        assert opened[0].closed
        assert opened[1].begins == [7]


@pytest.mark.usefixtures("clock", "other")
@pytest.mark.parametrize("call", ["flush", "commit_transaction"])
def test_a_writer_whose_client_has_lost_every_broker_neither_waits_nor_aborts_without_end(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Producer(Client):
        def begin_transaction(self) -> None: ...

        def produce(self, *_: object, **__: object) -> None: ...

        def flush(self, _timeout_s: float) -> int:
            return int(call == "flush")

        def commit_transaction(self, _timeout_s: float) -> None:
            raise NO_ANSWER

        def abort_transaction(self, _timeout_s: float) -> None:
            pytest.fail("there is no broker to tell it to")

    producer = Producer()
    producer.fault = NO_BROKER
    monkeypatch.setattr(transactions, "open_transactional_producer", lambda *_, **__: producer)
    with closing(TransactionalWriter(NOWHERE, "run.test")) as writer:
        writer.begin()
        writer.produce([Outgoing("t", b"x")])
        with pytest.raises(MustRestart, match="the Kafka client has lost every broker"):
            writer.commit()
