"""Reading topics without a group: by hand, from positions that the reader's owner keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Self

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.infra.kafka.clients import (
    AWAY,
    Connection,
    KafkaAway,
    Message,
    end_offsets,
    kafka_errors,
    message_of,
    open_consumer,
    partitions_of,
    translate,
)

log = structlog.get_logger()

Place = tuple[str, int]
"""(topic, partition)."""


class TopicReader:
    """Follows partitions from given offsets, committed records only; positions are the owner's to keep.

    Args:
        connection: The cluster.
        positions: Next offset by (topic, partition); `whole_topics` makes them.
        name: Shows in the broker's logs.
    """

    def __init__(self, connection: Connection, positions: Mapping[Place, int], name: str = "reader") -> None:
        self.connection = connection
        self.positions = dict(positions)
        self._ended: set[Place] = set()
        """Partitions that a fetch has found at their end."""
        self._consumer = open_consumer(connection, name, enable_partition_eof=True)
        self._assign()

    def _assign(self) -> None:
        # Plain offsets, also for 0: asking for the beginning by name costs half a second; below it, a reset goes there.
        places = [TopicPartition(t, p, offset) for (t, p), offset in self.positions.items()]
        with kafka_errors("assigning partitions"):
            self._consumer.assign(places)

    def __enter__(self) -> Self:
        """Return the reader, which closes at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def poll(self, most: int = 64, timeout_s: float = 0.1) -> list[Message]:
        """Return up to `most` records, as soon as there are any; none after the timeout. Positions move past them."""
        found: list[Message] = []
        batch = self._consumer.consume(most, 0)
        if not batch and timeout_s > 0 and (first := self._consumer.poll(timeout_s)) is not None:
            batch = [first, *self._consumer.consume(most - 1, 0)]
        for raw in batch:
            error = raw.error()
            if error is None:
                found.append(message_of(raw))
                self.positions[found[-1].topic, found[-1].partition] = found[-1].offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                # An end of partition also tells of markers that no record shows.
                place = (raw.topic() or "", raw.partition() or 0)
                self.positions[place] = max(self.positions[place], raw.offset() or 0)
                self._ended.add(place)
            elif error.code() not in AWAY:
                raise translate(KafkaException(error), f"reading {raw.topic()}")
        return found

    def until(self, ends: Mapping[Place, int], timeout_s: float = 60) -> Iterator[Message]:
        """Yield records until every position has passed its end, waiting for transactions that are still open.

        Raises KafkaAway when that takes longer than the timeout without any progress.
        """
        yield from self._while(lambda: any(self.positions[place] < end for place, end in ends.items()), ends, timeout_s)

    def _while(self, goes_on: Callable[[], bool], ends: Mapping[Place, int], timeout_s: float) -> Iterator[Message]:
        patience = time.monotonic() + timeout_s
        while goes_on():
            found = self.poll(timeout_s=0.05)
            if found:
                patience = time.monotonic() + timeout_s
            elif time.monotonic() > patience:
                behind = {f"{t}[{p}]": (self.positions[t, p], end) for (t, p), end in ends.items()}
                raise KafkaAway(f"reading up to the end of a topic stands still for {timeout_s:.0f} s: {behind}")
            yield from found

    def catch_up(self, timeout_s: float = 60) -> Iterator[Message]:
        """Yield records up to the high watermarks of this moment, open transactions included: an exact restore.

        A fetch of every partition must have met its end too, or have told it: on a topic that is written all the time
        none meets it. The answer to a question for it was seen to be wrong just after a broker's restart, and whoever
        takes an empty past for the truth begins a run anew that is there.
        """
        ends = end_offsets(self.connection, self.positions)
        untold = set(ends)

        def goes_on() -> bool:
            untold.difference_update(self._ended)
            for place in tuple(untold):
                if (told := self._told_end(place)) is not None:
                    ends[place] = max(ends[place], told)
                    untold.remove(place)
            return bool(untold) or any(self.positions[place] < end for place, end in ends.items())

        return self._while(goes_on, ends, timeout_s)

    def _told_end(self, place: Place) -> int | None:
        """Return the high watermark that the newest fetch of a partition told; None while the client knows of none.

        It was seen to know of none, minutes after it had read a partition to its end.
        """
        told = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
        return told[1] if told and told[1] >= 0 else None

    def ends(self) -> dict[Place, int]:
        """Return the high watermarks of this moment."""
        return end_offsets(self.connection, self.positions)

    def close(self) -> None:
        """Leave."""
        self._consumer.close()


def whole_topics(
    connection: Connection, topics: Iterable[str], given: Mapping[Place, int] | None = None
) -> dict[Place, int]:
    """Return positions of all partitions of these topics: those given, else the beginning."""
    known = given or {}
    return {
        (topic, partition): known.get((topic, partition), 0)
        for topic in topics
        for partition in range(partitions_of(connection, topic))
    }


def read_all(connection: Connection, topics: Iterable[str]) -> Iterator[Message]:
    """Yield every committed record of these topics, up to their ends at this moment."""
    with TopicReader(connection, whole_topics(connection, topics)) as reader:
        yield from reader.catch_up()


def read_range(connection: Connection, place: Place, begin: int, end: int) -> Iterator[Message]:
    """Yield the committed records of a partition from `begin` up to, not including, `end`."""
    with TopicReader(connection, {place: begin}) as reader:
        for message in reader.until({place: end}):
            if message.offset < end:
                yield message


def read_offsets(connection: Connection, topic: str, offsets: Mapping[int, Collection[int]]) -> Iterator[Message]:
    """Yield the committed records at some offsets of a topic, those that there are, in order by partition."""
    wanted = {(topic, partition): some for partition, some in offsets.items() if some}
    last = end_offsets(connection, wanted)
    with TopicReader(connection, {place: min(some) for place, some in wanted.items()}) as reader:
        for message in reader.until({place: min(max(some) + 1, last[place]) for place, some in wanted.items()}):
            if message.offset in wanted[message.topic, message.partition]:
                yield message


def read_key(connection: Connection, place: Place, key: bytes) -> Iterator[Message]:
    """Yield the committed records of one key on a partition, which is read as a whole: nothing indexes keys."""
    with TopicReader(connection, {place: 0}) as reader:
        yield from (message for message in reader.catch_up() if message.key == key)


def read_one(connection: Connection, place: Place, offset: int) -> Message | None:
    """Return the record at an offset; None when it is not there, or is no committed record."""
    return next((m for m in read_range(connection, place, offset, offset + 1) if m.offset == offset), None)
