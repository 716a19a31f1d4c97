"""A turn of a group's member is cut by time, and what it has handled is committed; stand-ins for Kafka's client."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.infra.kafka import broker_contact, clients
from headrace.infra.kafka.clients import Connection, Message
from headrace.infra.process.signals import MustRestart
from headrace.infra.run import group_consumer
from headrace.infra.run.group_consumer import GroupConsumer
from headrace.infra.run.group_restore import Membership, Restored
from headrace.infra.stopwatch import Stopwatch


class Counting:
    """Counts what it handles."""

    is_last_refused = False

    def __init__(self) -> None:
        self.count = 0

    def handle(self, _message: Message) -> list[Any]:
        self.count += 1
        return []


ANSWER = SimpleNamespace(brokers={1: "a broker"})


@pytest.mark.parametrize(("each_s", "turns"), [(0.1, [6]), (1.2, [2, 2, 2]), (5.0, [1] * 6)])
def test_a_slow_algorithm_costs_short_turns_and_the_committed_offset_always_moves(
    each_s: float, turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, state = 0.0, Counting()

    class Slow(Counting):
        def handle(self, message: Message) -> list[Any]:
            nonlocal now_s
            now_s += each_s
            return super().handle(message)

    messages = [Message("in", 0, offset, b"", b"") for offset in range(6)]

    def consume(most: int, _timeout_s: float) -> list[Message]:
        taken = messages[:most]
        del messages[:most]
        return taken

    kafka = SimpleNamespace(
        subscribe=lambda *_, **__: None,
        consume=consume,
        consumer_group_metadata=lambda: None,
        list_topics=lambda *_, **__: None,
    )
    monkeypatch.setattr(group_consumer, "open_consumer", lambda *_: kafka)
    monkeypatch.setattr(group_consumer, "take_good_messages", lambda raw, _doing: raw)
    monkeypatch.setattr(group_consumer.time, "monotonic", lambda: now_s)
    member = GroupConsumer(Membership(Connection("k:1"), "curate.p", "r", "g", ("in",), "state"), lambda _: state)
    member._hold(("in", 0), Restored(Slow(), 0, 0, -1))
    committed, lengths, watch = 0, list[int](), Stopwatch()
    while committed < 6:
        for message in member.poll(watch):
            member.handle(message)
        offsets = member.offsets([])
        assert offsets is not None, "the committed offset moves"
        [position] = offsets.positions
        lengths.append(position.offset - committed)
        committed = position.offset
    assert lengths == turns


@pytest.fixture
def lost_member(monkeypatch: pytest.MonkeyPatch) -> GroupConsumer:
    """A member whose client knows no broker, while other clients do."""

    def find_none(*_: object, **__: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    kafka = SimpleNamespace(
        subscribe=lambda *_, **__: None,
        consume=lambda *_: [],
        consumer_group_metadata=lambda: None,
        list_topics=find_none,
        committed=find_none,
    )
    monkeypatch.setattr(group_consumer, "open_consumer", lambda *_: kafka)
    monkeypatch.setattr(clients, "get_admin", lambda _: SimpleNamespace(list_topics=lambda **_: ANSWER))
    monkeypatch.setattr(broker_contact, "LOOK_EVERY_S", 0.0)
    return GroupConsumer(Membership(Connection("k:1"), "curate.p", "r", "g", ("in",), "state"), lambda _: Counting())


def test_a_member_whose_client_has_lost_every_broker_starts_again(lost_member: GroupConsumer) -> None:
    lost_member.poll(Stopwatch())
    with pytest.raises(MustRestart, match="reading in: the Kafka client has lost every broker"):
        lost_member.poll(Stopwatch())


def test_a_member_that_rewinds_without_a_broker_starts_again(
    lost_member: GroupConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_consumer, "REBALANCE_S", 1.0)
    lost_member._owned.add(("in", 0))
    with pytest.raises(MustRestart, match="committed offsets of group g: the Kafka client has lost every broker"):
        lost_member.rewind()
