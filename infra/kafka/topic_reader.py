"""Reads topics without a consumer group, from given positions."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Self

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.infra.kafka.broker_contact import BrokerContact
from headrace.infra.kafka.clients import (
    AWAY_ERRORS,
    Connection,
    KafkaAway,
    LogTruncated,
    Message,
    open_consumer,
    translate_error,
    translate_kafka_errors,
)
from headrace.infra.kafka.received import message_of
from headrace.infra.kafka.topic_offsets import SETTLING_S, fetch_begin_offsets, fetch_end_offsets, fetch_partition_count

log = structlog.get_logger()

PartitionId = tuple[str, int]
"""(topic, partition)."""


def name_partition(partition_id: PartitionId) -> str:
    """Return `topic[partition]`."""
    return f"{partition_id[0]}[{partition_id[1]}]"


def name_offset(message: Message) -> str:
    """Return a message's place: `topic[partition]@offset`."""
    return f"{name_partition((message.topic, message.partition))}@{message.offset}"


class TopicReader:
    """Follows partitions from given offsets, reading only committed records; the owner stores the positions.

    Args:
        connection: The cluster.
        positions: Next offset by (topic, partition); `find_start_positions` makes them.
        name: Name in the broker's logs.
    """

    def __init__(self, connection: Connection, positions: Mapping[PartitionId, int], name: str = "reader") -> None:
        self.connection = connection
        self.positions = dict(positions)
        self._ended: set[PartitionId] = set()
        """Partitions whose end a fetch has reached."""
        self._topics, self._name = ", ".join(sorted({topic for topic, _ in self.positions})), name
        self._open()

    def _open(self) -> None:
        topic = min((topic for topic, _ in self.positions), default="")
        run = topic.partition(".")[0]
        self._consumer = open_consumer(self.connection, self._name, run=run, enable_partition_eof=True)
        self._contact = BrokerContact(self._consumer, self.connection, topic)
        self._assign()

    def _assign(self) -> None:
        # Plain offsets, even for 0, because asking for the beginning by name costs half a second.
        partitions = [TopicPartition(t, p, offset) for (t, p), offset in self.positions.items()]
        with translate_kafka_errors("assigning partitions"):
            self._consumer.assign(partitions)

    def __enter__(self) -> Self:
        """Return the reader, which closes at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def poll(self, most: int = 64, timeout_s: float = 0.1) -> list[Message]:
        """Return up to `most` records as soon as there are some; none after the timeout. Positions move past them."""
        found: list[Message] = []
        outside: set[PartitionId] = set()
        batch = self._consumer.consume(most, 0)
        if not batch and timeout_s > 0 and (first := self._consumer.poll(timeout_s)) is not None:
            batch = [first, *self._consumer.consume(most - 1, 0)]
        for raw in batch:
            error = raw.error()
            if error is None:
                found.append(message_of(raw))
                self.positions[found[-1].topic, found[-1].partition] = found[-1].offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                # An end of partition also accounts for markers, which are not returned.
                partition_id = (raw.topic() or "", raw.partition() or 0)
                self.positions[partition_id] = max(self.positions[partition_id], raw.offset() or 0)
                self._ended.add(partition_id)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
                outside.add((raw.topic() or "", raw.partition() or 0))
            elif error.code() not in AWAY_ERRORS:
                raise translate_error(KafkaException(error), f"reading {raw.topic() or self._topics}")
        if outside:
            self._reenter(outside)
        if found:
            self._contact.note_answer()
        elif self._contact.has_lost_brokers():
            # The client has lost every broker, although Kafka can be reached; a new client reads on.
            log.warning("kafka.client_lost", topics=self._topics, why="it knows no broker; a new client reads on")
            self._consumer.close()
            self._open()
        return found

    def _reenter(self, outside: set[PartitionId]) -> None:
        """Go to the first existing record of partitions whose earlier records were deleted. Raises LogTruncated."""
        positions = {partition_id: self.positions[partition_id] for partition_id in outside}
        refuse_lost_tail(self.connection, positions)
        for partition_id, begin in fetch_begin_offsets(self.connection, positions).items():
            self.positions[partition_id] = max(self.positions[partition_id], begin)
        self._assign()

    def read_until(self, ends: Mapping[PartitionId, int], timeout_s: float = 60) -> Iterator[Message]:
        """Yield records until every position has passed its end; wait for open transactions.

        Raises KafkaAway after `timeout_s` without progress.
        """
        yield from self._read_while(
            lambda: [partition_id for partition_id, end in ends.items() if self.positions[partition_id] < end],
            ends,
            timeout_s,
        )

    def _read_while(
        self, list_pending: Callable[[], Collection[PartitionId]], ends: Mapping[PartitionId, int], timeout_s: float
    ) -> Iterator[Message]:
        """Yield records while partitions are pending. Records of others, which may come for ever, are no progress."""
        patience, still = time.monotonic() + timeout_s, 0
        while pending := list_pending():
            before = {partition_id: self.positions[partition_id] for partition_id in pending}
            found = self.poll(timeout_s=0.05)
            is_moving = any(self.positions[partition_id] != position for partition_id, position in before.items())
            if is_moving or len(pending) != still:
                patience, still = time.monotonic() + timeout_s, len(pending)
            elif time.monotonic() > patience:
                why = f"although there are more records: {describe_behind(self.positions, ends)}"
                if all(self.positions[partition_id] >= end for partition_id, end in ends.items()):
                    why = f"so it is not known whether there are more records in {', '.join(map(name_partition, ends))}"
                raise KafkaAway(
                    f"Kafka has sent no record for {timeout_s:.0f} s, {why}. Check that all brokers run and can be "
                    "reached"
                )
            began = time.monotonic()
            yield from found
            patience += time.monotonic() - began  # the time of whoever takes them

    def catch_up(self, timeout_s: float = 60) -> Iterator[Message]:
        """Yield records up to the current high watermarks, including open transactions, for an exact restore.

        In addition a fetch of every partition must have reached or returned its end (on a busy topic no fetch reaches
        it). A request for the end can give a wrong answer just after a broker's restart (seen), and a component that
        believes in an empty history would restart an existing run from nothing.
        """
        ends = fetch_end_offsets(self.connection, self.positions)
        unmet = set(ends)

        def list_pending() -> set[PartitionId]:
            unmet.difference_update(self._ended)
            for partition_id in tuple(unmet):
                if (end := self._find_cached_high_watermark(partition_id)) is not None:
                    ends[partition_id] = max(ends[partition_id], end)
                    unmet.remove(partition_id)
            return unmet | {partition_id for partition_id, end in ends.items() if self.positions[partition_id] < end}

        return self._read_while(list_pending, ends, timeout_s)

    def _find_cached_high_watermark(self, partition_id: PartitionId) -> int | None:
        """Return the high watermark of a partition's newest fetch; None if the client has none.

        The client may have none even minutes after it read a partition to its end (seen).
        """
        marks = self._consumer.get_watermark_offsets(TopicPartition(*partition_id), cached=True)
        return marks[1] if marks and marks[1] >= 0 else None

    def ends(self) -> dict[PartitionId, int]:
        """Return the current high watermarks."""
        return fetch_end_offsets(self.connection, self.positions)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()


def describe_behind(positions: Mapping[PartitionId, int], ends: Mapping[PartitionId, int]) -> str:
    """Return which partitions are not read up to their ends, in words."""
    behind = [(name_partition(one), positions[one], end) for one, end in ends.items() if positions[one] < end]
    return ", ".join(f"{name} was read up to offset {position} and ends at {end}" for name, position, end in behind)


def refuse_lost_tail(connection: Connection, positions: Mapping[PartitionId, int]) -> None:
    """Raise LogTruncated if a log ends before the next offset to read: records read before are lost.

    A starting broker may report a too low end, so it gets some seconds.
    """
    patience = time.monotonic() + SETTLING_S
    while True:
        ends = fetch_end_offsets(connection, positions)
        short = {partition_id: end for partition_id, end in ends.items() if end < positions[partition_id]}
        if not short:
            return
        if time.monotonic() > patience:
            break
        time.sleep(0.2)
    lost = ", ".join(
        f"{t}[{p}] ends at {end}, but was read up to offset {positions[t, p]}" for (t, p), end in short.items()
    )
    raise LogTruncated(lost)


def find_start_positions(
    connection: Connection, topics: Iterable[str], given: Mapping[PartitionId, int] | None = None
) -> dict[PartitionId, int]:
    """Return positions for all partitions of these topics: the given ones, else the beginning."""
    known = given or {}
    return {
        (topic, partition): known.get((topic, partition), 0)
        for topic in topics
        for partition in range(fetch_partition_count(connection, topic))
    }


def read_all(connection: Connection, topics: Iterable[str]) -> Iterator[Message]:
    """Yield every committed record of these topics up to their current ends."""
    with TopicReader(connection, find_start_positions(connection, topics)) as reader:
        yield from reader.catch_up()


def read_partition(connection: Connection, partition_id: PartitionId) -> Iterator[Message]:
    """Yield every committed record of a partition up to its current end."""
    with TopicReader(connection, {partition_id: 0}) as reader:
        yield from reader.catch_up()


def read_range(connection: Connection, partition_id: PartitionId, begin: int, end: int) -> Iterator[Message]:
    """Yield the committed records of a partition from `begin` up to, not including, `end`."""
    with TopicReader(connection, {partition_id: begin}) as reader:
        for message in reader.read_until({partition_id: end}):
            if message.offset < end:
                yield message


def read_offsets(connection: Connection, topic: str, offsets: Mapping[int, Collection[int]]) -> Iterator[Message]:
    """Yield the existing committed records at some offsets of a topic, in order by partition."""
    wanted = {(topic, partition): some for partition, some in offsets.items() if some}
    if not wanted:
        return
    last = fetch_end_offsets(connection, wanted)
    with TopicReader(connection, {partition_id: min(some) for partition_id, some in wanted.items()}) as reader:
        for message in reader.read_until(
            {partition_id: min(max(some) + 1, last[partition_id]) for partition_id, some in wanted.items()}
        ):
            if message.offset in wanted[message.topic, message.partition]:
                yield message


def read_key(connection: Connection, partition_id: PartitionId, key: bytes) -> Iterator[Message]:
    """Yield the committed records of one key; this reads the whole partition, because keys have no index."""
    with TopicReader(connection, {partition_id: 0}) as reader:
        yield from (message for message in reader.catch_up() if message.key == key)


def read_one(connection: Connection, partition_id: PartitionId, offset: int) -> Message | None:
    """Return the record at an offset; None if it does not exist or was not committed."""
    return next((m for m in read_range(connection, partition_id, offset, offset + 1) if m.offset == offset), None)
