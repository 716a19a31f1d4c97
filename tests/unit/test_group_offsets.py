"""What other programs commit for a group never ends a component that reads it."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition

from headrace.infra.kafka import group_offsets
from headrace.infra.kafka.clients import Connection
from headrace.infra.kafka.group_offsets import Commit, fetch_commits


class ReadTooFar:
    """A committed offset as the client gives it, when the text of another client runs into other bytes."""

    topic, partition, offset, error = "tasks", 1, 7, None

    @property
    def metadata(self) -> str:
        return b"text\x99".decode()


class Broker:
    """A consumer that finds two commits."""

    def committed(self, asked: list[TopicPartition], timeout: float) -> list[TopicPartition | ReadTooFar]:
        return [TopicPartition("tasks", 0, 5, metadata="ours"), ReadTooFar()]

    def close(self) -> None:
        pass


def test_a_commit_whose_text_cannot_be_read_counts_as_one_without_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_offsets, "open_consumer", lambda *_: Broker())
    monkeypatch.setattr(group_offsets, "fetch_partition_count", lambda *_: 2)
    found = fetch_commits(Connection("127.0.0.1:1"), "rollout", ["tasks"])
    assert found == {("tasks", 0): Commit(5, "ours"), ("tasks", 1): Commit(7, "")}
