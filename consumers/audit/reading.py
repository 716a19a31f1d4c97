"""Reading a run's topics for an audit: counted, timed, with progress on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from infra.kafka import Connection, Message, begin_offsets, end_offsets, kafka_errors, open_admin
from infra.topic_reader import Place, TopicReader, whole_topics

TELL_EVERY = 2_000


class Reading:
    """Reads topics one after another, from the beginning to what is their end when it comes to them.

    Args:
        connection: The cluster.
        progress: Where to show how far it is.
    """

    def __init__(self, connection: Connection, progress: Progress) -> None:
        self._connection = connection
        self._progress = progress
        self.records = 0
        self.seconds = 0.0
        """Wall seconds, those of whoever takes the records in included."""

    def read(self, topics: Iterable[str], what: str) -> Iterator[Message]:
        """Yield every committed record of some topics. Raises KafkaAway or KafkaRefused."""
        begin = time.perf_counter()
        places = whole_topics(self._connection, topics)
        ends = end_offsets(self._connection, places)
        task = self._progress.add_task(what, total=sum(ends.values()))
        with TopicReader(self._connection, places, "audit") as reader:
            for count, message in enumerate(reader.until(ends), 1):
                self.records += 1
                if count % TELL_EVERY == 0:
                    self._tell(task, reader.positions)
                yield message
            self._tell(task, reader.positions)
        self.seconds += time.perf_counter() - begin

    def _tell(self, task: TaskID, positions: dict[Place, int]) -> None:
        self._progress.update(task, completed=sum(positions.values()))


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """Show progress on standard error while the block runs, where that is a terminal."""
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        yield progress


def known_topics(connection: Connection) -> set[str]:
    """Return the topics of a cluster."""
    with kafka_errors("listing topics"):
        return set(open_admin(connection).list_topics(timeout=10).topics)


def shortened(connection: Connection, topics: Iterable[str]) -> Iterator[str]:
    """Yield what is gone from the beginnings of topics that are kept for ever."""
    for (topic, partition), offset in begin_offsets(connection, whole_topics(connection, topics)).items():
        if offset:
            yield f"the records of {topic}[{partition}] before offset {offset} are gone: was its retention changed?"
