"""Partitions of topics, and their first and last offsets."""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from headrace.infra.kafka.admin_answers import await_answer
from headrace.infra.kafka.clients import (
    Connection,
    KafkaAway,
    KafkaRefused,
    forget_admins,
    get_admin,
    translate_error,
    translate_kafka_errors,
)

MOVED_LEADER = {KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH}
"""Errors of a cached admin client that still uses leader epochs from before a broker's restart."""
SETTLING = {
    *MOVED_LEADER,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError._NOENT,  # noqa: SLF001 - "no leaders found", of a topic that was just made
}
"""Errors of a broker that answers but does not serve the partition yet."""
SETTLING_S = 5.0


def fetch_partition_count(connection: Connection, topic: str) -> int:
    """Return the number of a topic's partitions. Raises KafkaAway, or KafkaRefused if the topic does not exist."""
    with translate_kafka_errors(f"asking for topic {topic}"):
        found = get_admin(connection).list_topics(topic, timeout=10).topics[topic]
    if found.error is not None:
        raise KafkaRefused(f"topic {topic} cannot be read: {found.error.str()}; `headrace topics` makes missing topics")
    if not found.partitions:  # a caller that believed this would find no history and begin again
        raise KafkaAway(f"Kafka lists no partitions of topic {topic}: its broker may not be ready yet")
    return len(found.partitions)


def fetch_end_offsets(connection: Connection, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return high watermarks, including open transactions, past which a restore must read.

    Waits a few seconds for new topics, and for a broker that has just started.
    """
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the client's own gap
    return _fetch_offsets_patiently(connection, list(partitions), latest, "ends")


def fetch_stable_ends(connection: Connection, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return the last stable offsets, up to which committed records can be read."""
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the client's own gap
    return _fetch_offsets_patiently(connection, list(partitions), latest, "ends", IsolationLevel.READ_COMMITTED)


def fetch_begin_offsets(connection: Connection, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return the first existing offsets; earlier records were deleted. Waits as `fetch_end_offsets`."""
    earliest: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # the client's own gap
    return _fetch_offsets_patiently(connection, list(partitions), earliest, "beginnings")


def _fetch_offsets_patiently(
    connection: Connection,
    partitions: list[tuple[str, int]],
    spec: OffsetSpec,
    what: str,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[tuple[str, int], int]:
    end = 0.0
    while True:
        try:
            return _fetch_offsets(connection, partitions, spec, isolation)
        except KafkaException as error:
            code = error.args[0].code()
            end = end or time.monotonic() + SETTLING_S  # counted from the first answer, which may itself take longer
            if code in MOVED_LEADER:
                forget_admins(older_than_s=0)
            if code not in SETTLING or time.monotonic() > end:
                raise translate_error(error, f"asking for the {what} of topics") from error
            time.sleep(0.05)


def _fetch_offsets(
    connection: Connection, partitions: list[tuple[str, int]], spec: OffsetSpec, isolation: IsolationLevel
) -> dict[tuple[str, int], int]:
    asked = {TopicPartition(topic, partition): spec for topic, partition in partitions}
    admin = get_admin(connection)
    futures = admin.list_offsets(asked, isolation_level=isolation, request_timeout=10) if asked else {}
    found = {(tp.topic, tp.partition): await_answer(future).offset for tp, future in futures.items()}
    if unknown := [f"{topic}[{partition}]" for (topic, partition), offset in found.items() if offset < 0]:
        reason = f"Kafka does not know the offsets of {', '.join(unknown)} yet; their broker may not be ready"
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, reason, retriable=True))
    return found
