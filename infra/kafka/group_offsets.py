"""Reads a consumer group's commits from outside, and deletes records that the group no longer needs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from headrace.infra.kafka.admin_answers import await_answer
from headrace.infra.kafka.clients import AWAY_ERRORS, Connection, get_admin, open_consumer, translate_kafka_errors
from headrace.infra.kafka.topic_offsets import fetch_partition_count

REQUEST_S = 10.0
COORDINATOR_ASK_S = 0.5
"""Seconds between two checks whether a coordinator refused."""

MEMBERSHIP_MOVES = {
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError._STATE,  # noqa: SLF001
}
"""Errors of calls during a rebalance or after the session: after the next poll a member knows its partitions."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A group's next offset of a partition, and the commit's metadata."""

    offset: int
    metadata: str = ""


def refuse_errors(partitions: list[TopicPartition]) -> list[TopicPartition]:
    """Return a consumer's answer, or raise KafkaException for the first partition with an error."""
    for tp in partitions:
        if tp.error is not None:
            raise KafkaException(tp.error)
    return partitions


def read_metadata(committed: TopicPartition) -> str:
    """Return the text that was committed beside an offset; empty if it cannot be read.

    After a text that another client wrote, librdkafka 2.16 reads on until the next zero byte in memory. It adds that
    byte to texts that it writes itself.
    """
    try:
        return committed.metadata or ""
    except UnicodeDecodeError:
        return ""


def fetch_committed_offsets(connection: Connection, group: str, topics: Iterable[str]) -> dict[tuple[str, int], int]:
    """Return a group's next offset by (topic, partition), without uncommitted partitions. See `fetch_commits`."""
    return {partition_id: commit.offset for partition_id, commit in fetch_commits(connection, group, topics).items()}


def fetch_commits(connection: Connection, group: str, topics: Iterable[str]) -> dict[tuple[str, int], Commit]:
    """Return a group's commits by (topic, partition), without uncommitted partitions.

    It uses a consumer that never joins, because the admin client's request without a broker can abort the process (seen
    with librdkafka 2.16). Raises KafkaAway or KafkaRefused.
    """
    asked = [TopicPartition(topic, p) for topic in topics for p in range(fetch_partition_count(connection, topic))]
    consumer = open_consumer(connection, "offsets", group)
    try:
        with translate_kafka_errors(f"reading the committed offsets of group {group}"):
            found = consumer.committed(asked, timeout=REQUEST_S)
    finally:
        consumer.close()
    return {
        (tp.topic, tp.partition): Commit(tp.offset, read_metadata(tp))
        for tp in found
        if tp.error is None and tp.offset >= 0
    }


def await_coordinator(connection: Connection, group: str, timeout_s: float) -> None:
    """Wait until a group's coordinator answers: only then may an admin client ask about the group.

    It uses a consumer that never joins, as `fetch_commits` does. An admin client that asks earlier, for instance on a
    cluster that never had a group, may lose its request, and abort the process when a connection breaks much later.
    Raises KafkaException without an answer in time; a refusal is an answer.
    """
    consumer, end = open_consumer(connection, "coordinator", group), time.monotonic() + timeout_s
    try:
        while not _is_answered(consumer, group, end):
            pass
    finally:
        consumer.close()


def _is_answered(consumer: Consumer, group: str, end: float) -> bool:
    """Return whether the coordinator answers within one attempt. Raises KafkaException after `end`."""
    try:
        consumer.committed([TopicPartition(group, 0)], timeout=COORDINATOR_ASK_S)  # the topic need not exist
    except KafkaException as error:
        if error.args[0].code() not in AWAY_ERRORS:
            return True
        told = consumer.poll(0)  # librdkafka retries after a refusal, and reports it only here
        refused = told.error() if told is not None else None
        if refused is not None and refused.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return True
        if time.monotonic() > end:
            raise
        return False
    return True


def delete_before(connection: Connection, offsets: dict[tuple[str, int], int]) -> None:
    """Delete the records below these offsets. Raises KafkaAway or KafkaRefused."""
    asked = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
    with translate_kafka_errors("deleting records that are no longer needed"):
        for future in get_admin(connection).delete_records(asked, request_timeout=REQUEST_S).values() if asked else ():
            await_answer(future)
