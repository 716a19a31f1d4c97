"""Reads a run's topics for an audit, and counts, times and shows the progress."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping

from headrace.infra.kafka.clients import Connection, Message, get_admin, translate_kafka_errors
from headrace.infra.kafka.topic_offsets import fetch_begin_offsets
from headrace.infra.kafka.topic_reader import PartitionId, TopicReader, find_start_positions
from headrace.infra.progress import open_progress

REPORT_EVERY = 2_000


class Reading:
    """Reads topics one after another, each from its beginning to its end at that time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.records = 0
        self.seconds = 0.0
        """Wall seconds of reading and of processing the records."""

    def read(self, topics: Iterable[str], what: str) -> Iterator[Message]:
        """Yield every committed record of some topics. Raises KafkaAway or KafkaRefused."""
        return self._read(find_start_positions(self._connection, topics), what)

    def read_in_order(self, topics: Iterable[str], what: str) -> Iterator[Message]:
        """Like `read`, but one partition after the other."""
        for partition_id, begin in find_start_positions(self._connection, topics).items():
            yield from self._read({partition_id: begin}, f"{what}[{partition_id[1]}]")

    def _read(self, partition_ids: Mapping[PartitionId, int], what: str) -> Iterator[Message]:
        begin = time.perf_counter()
        with open_progress(f"auditing {what}") as tell, TopicReader(self._connection, partition_ids, "audit") as reader:
            ends = reader.ends()  # only for the progress: just after a broker's start they may be wrong
            for count, message in enumerate(reader.catch_up(), 1):
                self.records += 1
                if count % REPORT_EVERY == 0:
                    tell(sum(reader.positions.values()), sum(ends.values()))
                yield message
        self.seconds += time.perf_counter() - begin


def list_topics(connection: Connection) -> set[str]:
    """Return the topics of a cluster."""
    with translate_kafka_errors("listing topics"):
        return set(get_admin(connection).list_topics(timeout=10).topics)


def find_shortened(connection: Connection, topics: Iterable[str]) -> Iterator[str]:
    """Yield the partitions that lost their first records, of topics that are kept for ever."""
    for (topic, partition), offset in fetch_begin_offsets(connection, find_start_positions(connection, topics)).items():
        if offset:
            yield (
                f"the records of {topic}[{partition}] before offset {offset} are gone, although the "
                "topic must keep all records: check whether its retention settings were changed"
            )
