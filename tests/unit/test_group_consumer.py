"""A member of a consumer group that goes back to what is committed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.infra.kafka.clients import Connection, KafkaRefused, take_good_messages
from headrace.infra.process.signals import MustRestart
from headrace.infra.run.group_consumer import GroupConsumer, Membership


class Client:
    """Refuses to go to an offset, as librdkafka does while it has not fetched that of the group."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.paused: list[TopicPartition] = []

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.paused += partitions

    def seek(self, _: TopicPartition) -> None:
        raise KafkaException(KafkaError(self.code))


def member(monkeypatch: pytest.MonkeyPatch, client: Client) -> GroupConsumer:
    membership = Membership(Connection("127.0.0.1:1"), "curate.p", "r", "g", ("in",), "state")
    one = GroupConsumer(membership, lambda _: cast("Any", None))
    monkeypatch.setattr(one, "_consumer", client)
    monkeypatch.setattr(one, "_fetch_committed", lambda ids: [TopicPartition(*partition_id, 5) for partition_id in ids])
    one._owned.add(("in", 0))
    return one


def test_a_partition_that_was_just_assigned_needs_not_be_gone_back_in(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(KafkaError._STATE)
    member(monkeypatch, client).rewind()
    assert [(one.topic, one.partition) for one in client.paused] == [("in", 0)]
    with pytest.raises(KafkaRefused, match=r"seeking to in\[0\]@5"):
        member(monkeypatch, Client(KafkaError.TOPIC_AUTHORIZATION_FAILED)).rewind()


def test_a_member_whose_session_is_over_joins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(code: int) -> None:
        def committed(*_: object, **__: object) -> None:
            raise KafkaException(KafkaError(code))

        one = member(monkeypatch, Client(code))
        monkeypatch.undo()
        monkeypatch.setattr(one, "_consumer", SimpleNamespace(committed=committed))
        one.rewind()

    with pytest.raises(MustRestart, match="the component joins the group anew"):
        refuse(KafkaError.UNKNOWN_MEMBER_ID)
    with pytest.raises(KafkaRefused, match="GROUP_AUTHORIZATION_FAILED"):
        refuse(KafkaError.GROUP_AUTHORIZATION_FAILED)


def test_a_client_that_can_do_no_more_is_built_anew() -> None:
    class Report:
        def error(self) -> KafkaError:
            return KafkaError(KafkaError._FATAL, "ConsumerGroupHeartbeat fatal error")

    with pytest.raises(MustRestart, match="goes on with a new client"):
        take_good_messages([cast("Any", Report())], "reading in")
