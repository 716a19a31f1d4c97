"""A member of a consumer group that goes back to what is committed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.infra.kafka.clients import Connection, KafkaRefused, Message
from headrace.infra.kafka.received import take_good_messages
from headrace.infra.kafka.transactions import Ticket
from headrace.infra.process.signals import MustRestart
from headrace.infra.run.group_consumer import GroupConsumer, Membership
from headrace.infra.run.group_restore import Restored


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


def test_no_offset_is_committed_without_a_snapshot_that_a_member_could_go_on_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without one, a partition whose offset Kafka has deleted looks as if it had never been read."""
    state = cast("Any", SimpleNamespace(handle=lambda _: (), snapshot=lambda: b"{}", is_last_refused=False))
    for restored, due in ((Restored(state, 0, 0, -1), [1, 0]), (Restored(state, 0, 0, 3), [0, 0])):
        one = member(monkeypatch, Client(0))
        one.membership = replace(one.membership, snapshot_every_s=1e9)
        one._hold(("in", 0), restored)
        for offset, snapshots in enumerate(due):
            one.handle(Message("in", 0, offset, b"", b""))
            written = list(one.before_commit(()))
            assert len(written) == snapshots
            committed = one.offsets([Ticket(3)] * snapshots)
            assert committed is not None
            assert [position.metadata for position in committed.positions] == ['{"snapshot": 3}']


def test_a_snapshot_follows_a_refusal_at_once_so_that_a_restore_does_not_decide_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = SimpleNamespace(handle=lambda _: (), snapshot=lambda: b"{}", is_last_refused=False)
    one = member(monkeypatch, Client(0))
    one.membership = replace(one.membership, snapshot_every_s=1e9)
    one._hold(("in", 0), Restored(cast("Any", state), 0, 0, 3))
    for offset, is_refused in enumerate((False, True, False)):
        state.is_last_refused = is_refused
        one.handle(Message("in", 0, offset, b"", b""))
        written = list(one.before_commit(()))
        assert len(written) == int(is_refused)
        assert one.offsets([Ticket(4)] * len(written)) is not None
