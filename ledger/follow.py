"""Reads a run's topics into its ledger, each time from where the ledger ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Self, TypeVar

from headrace.infra.environment import cache_folder
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Connection, LogTruncated, Message
from headrace.infra.kafka.cluster_topics import list_partitions
from headrace.infra.kafka.topic_reader import PartitionId, TopicReader, find_start_positions
from headrace.infra.run.run import Run
from headrace.ledger.ledger import Ledger, LedgerRemade
from headrace.ledger.run_streams import RunStreams

MESSAGES_AT_ONCE = 2_000
"""Messages that are written in one transaction."""
Answer = TypeVar("Answer")


class Follower:
    """Reads topics into a ledger.

    Args:
        connection: The cluster.
        ledger: The ledger.
        topics: Topics to read.
        name: Name in the broker's logs.
    """

    def __init__(self, connection: Connection, ledger: Ledger, topics: Iterable[str], name: str) -> None:
        self._connection, self.ledger, self._topics, self._name = connection, ledger, tuple(topics), name
        self._reader = self._open()

    def _open(self) -> TopicReader:
        known = self.ledger.positions
        young = [topic for topic in self._topics if topic in self.ledger.young_topics]
        lacking = set(young) - {topic for topic, _ in list_partitions(self._connection, young)}
        begin = find_start_positions(self._connection, [topic for topic in self._topics if topic not in lacking])
        return TopicReader(
            self._connection, {one: max(offset, known.get(one, 0)) for one, offset in begin.items()}, self._name
        )

    def __enter__(self) -> Self:
        """Return the follower, which closes its reader at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    @property
    def positions(self) -> dict[PartitionId, int]:
        """Next offset of every partition."""
        return self._reader.positions

    def ends(self) -> dict[PartitionId, int]:
        """Return the current high watermarks."""
        return self._reader.ends()

    def catch_up(self) -> None:
        """Read up to the current ends. Raises KafkaAway or KafkaRefused."""
        while True:
            try:
                messages = self._reader.catch_up()
                while some := list(islice(messages, MESSAGES_AT_ONCE)):
                    self.ledger.add(some)
                self.ledger.advance(self._reader.positions)
            except LedgerRemade:
                self.begin_again()
            except LogTruncated as error:
                self.ledger.empty(str(error))
                self.begin_again()
            else:
                return

    def poll(self, most: int, timeout_s: float, arrived_ms: Callable[[Message], int]) -> int:
        """Read what is there, up to `most` messages; return their number.

        `arrived_ms` returns the time of a message's arrival, as `Ledger.add` takes it.

        Raises:
            LedgerRemade: The ledger is empty: give `begin_again`.
            Exception: A defect in making rows; what was not written is read again.
        """
        try:
            messages = self._reader.poll(most, timeout_s)
            times = [arrived_ms(message) for message in messages]
            for is_new, at_ms in ((False, 0), (True, max(times, default=0))):
                some = [message for message, at in zip(messages, times, strict=True) if bool(at) == is_new]
                if some:
                    self.ledger.add(some, at_ms)
        except LogTruncated as error:
            self.ledger.empty(str(error))
            raise LedgerRemade(str(error)) from error
        except LedgerRemade:
            raise
        except Exception:
            self.begin_again()
            raise
        return len(messages)

    def begin_again(self) -> None:
        """Read the topics again from where the ledger ends. Raises KafkaAway or KafkaRefused."""
        before, self._reader = self._reader, self._open()
        before.close()

    def close(self) -> None:
        """Close the reader; the ledger stays open."""
        self._reader.close()


def find_ledger_file(run_id: str) -> Path | None:
    """Return the file of a run that has no folder on this machine; None if this user has no cache folder."""
    try:
        return cache_folder() / "ledgers" / f"{run_id}.sqlite"
    except UsageError:
        return None


def open_ledger(run: Run, path: Path | None) -> Ledger:
    """Open the ledger of a run, in memory if `path` is None."""
    with suppress(OSError):  # then it is kept in memory
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
    return Ledger(path, run.run_id, RunStreams(run.recipe, run.revisions))


def ask_ledger(run: Run, path: Path | None, ask: Callable[[Ledger], Answer]) -> Answer:
    """Return what a function finds in a run's ledger, after reading what is new on its topics.

    Raises KafkaAway or KafkaRefused.
    """
    with (
        closing(open_ledger(run, path)) as ledger,
        Follower(run.connection, ledger, ledger.topics, "ledger") as follower,
    ):
        while True:
            follower.catch_up()
            try:
                return ask(ledger)
            except LedgerRemade:
                follower.begin_again()
