"""Restoring the partitions of a group consumer: all of them with one reader of snapshots and one of inputs.

A member of a group must poll now and then, so the work is cut: each call goes on for a stretch of time. Nobody restores
from "the end" of `state`: an open transaction hides the newest snapshot there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog
from confluent_kafka import TopicPartition

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import Connection, Message, Outgoing
from headrace.infra.kafka.decoding import read_record
from headrace.infra.kafka.topic_reader import PartitionId, TopicReader, name_partition, refuse_lost_tail
from headrace.schemas.records import Snapshot

log = structlog.get_logger()


class StateLost(HeadraceError):
    """The snapshot that a committed offset names is not there."""


class PartitionState(Protocol):
    """The memory of one input partition: a function of its records in order, without I/O or a clock."""

    @property
    def was_unread(self) -> bool:
        """Whether the record that was handled last could not be read."""

    def handle(self, message: Message) -> Iterable[Outgoing]:
        """Take in one record; return what follows."""

    def snapshot(self) -> bytes:
        """Return the state."""

    def restore(self, body: bytes) -> None:
        """Take the state that `snapshot` returned."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Who a group consumer is."""

    connection: Connection
    component: str
    """Name of its snapshots, and of its consumer group."""
    run_id: str
    group: str
    topics: tuple[str, ...]
    state_topic: str
    snapshot_every_s: float = 3.0
    state_partition: int = 0

    @property
    def state_place(self) -> PartitionId:
        """Topic and partition of its snapshots."""
        return self.state_topic, self.state_partition

    def key(self, place: PartitionId) -> bytes:
        """Return the key of a partition's snapshots."""
        topic, partition = place
        return f"{self.component}|{topic}|{partition}".encode()


@dataclass(slots=True)
class Restored:
    """The state of a partition as of its committed offset."""

    state: PartitionState
    begin: int
    """Input offset of its snapshot; 0 without one."""
    end: int
    """The committed offset; 0 before the first."""
    snapshot_offset: int
    """Offset in `state` of its newest snapshot; -1 before the first."""


class Restore:
    """Restores partitions, a stretch at a time.

    Args:
        member: Whose they are.
        committed: Their committed offsets with metadata; one that is negative was never committed.
        make_state: Returns the empty state of a partition.
    """

    def __init__(
        self,
        member: Membership,
        committed: Sequence[TopicPartition],
        make_state: Callable[[PartitionId], PartitionState],
    ) -> None:
        self._member = member
        self._committed = {_partition_of(position): position for position in committed}
        self._make_state = make_state
        self._found: dict[PartitionId, Restored] = {}
        self._steps = self._restore_all()

    def drop(self, places: Iterable[PartitionId]) -> None:
        """Restore these no more: they are another member's."""
        for place in places:
            self._committed.pop(place, None)
            self._found.pop(place, None)

    def go_on(self, most_s: float) -> dict[PartitionId, Restored] | None:
        """Go on for so many seconds, or a step more; return all when they are restored, until then None.

        Raises StateLost, LogTruncated, KafkaAway, KafkaRefused, and whatever a state raises.
        """
        end = time.monotonic() + most_s
        for _ in self._steps:
            if time.monotonic() >= end:
                return None
        for place, one in self._found.items():
            log.info("state.restored", partition=name_partition(place), offset=one.end, replayed=one.end - one.begin)
        return self._found

    def close(self) -> None:
        """Leave what is left."""
        self._steps.close()

    def _restore_all(self) -> Generator[None]:
        """Do all, yielding after each record."""
        refuse_lost_tail(self._member.connection, {place: one.offset for place, one in self._committed.items()})
        yield from self._refuse_lost_offsets()
        for place, position in self._committed.items():
            snapshot_offset = _snapshot_offset(position) if position.metadata else -1
            self._found[place] = Restored(self._make_state(place), 0, max(position.offset, 0), snapshot_offset)
        yield from self._take_snapshots()
        yield from self._handle_inputs()

    def _refuse_lost_offsets(self) -> Iterator[None]:
        """Refuse to begin anew where somebody has been before: all that was handled would be handled again."""
        new = {self._member.key(place): place for place, one in self._committed.items() if one.offset < 0}
        if not new:
            return
        known = set()
        with TopicReader(self._member.connection, {self._member.state_place: 0}) as reader:
            for message in reader.catch_up():
                known.add(message.key)
                yield
        if lost := [name_partition(place) for key, place in new.items() if key in known]:
            raise StateLost(
                f"group {self._member.group} has lost its offsets of {', '.join(lost)}, where it has been: did the "
                "cluster's offsets.retention.minutes pass while the run rested? Going on would curate everything a "
                "second time; set the offsets back, or begin a new run",
            )

    def _take_snapshots(self) -> Iterator[None]:
        wanted = {one.snapshot_offset: place for place, one in self._found.items() if one.snapshot_offset >= 0}
        if not wanted:
            return
        where = self._member.state_place
        with TopicReader(self._member.connection, {where: min(wanted)}) as reader:
            for message in reader.read_until({where: min(max(wanted) + 1, reader.ends()[where])}):
                if (place := wanted.pop(message.offset, None)) is not None and place in self._found:
                    self._take_snapshot(message, place)
                yield
        for offset, place in wanted.items():
            if place in self._found:
                raise self._no_snapshot_error(offset, place)

    def _take_snapshot(self, message: Message, place: PartitionId) -> None:
        snapshot = read_record(message, Snapshot)
        if snapshot is None or (snapshot.component, snapshot.topic, snapshot.partition) != (
            self._member.component,
            *place,
        ):
            raise self._no_snapshot_error(message.offset, place)
        try:
            self._found[place].state.restore(snapshot.body)
            self._found[place].begin = snapshot.positions[name_partition(place)]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise StateLost(
                f"the snapshot of {name_partition(place)} at {self._member.state_topic}@{message.offset} cannot be "
                f"taken back ({type(error).__name__}: {error}): was it written by another version of Headrace?"
            ) from error

    def _no_snapshot_error(self, offset: int, place: PartitionId) -> StateLost:
        return StateLost(
            f"{self._member.state_topic}@{offset} should hold the snapshot of {name_partition(place)}, and does not: "
            "was the topic's retention changed? Without it records could be trained twice",
        )

    def _handle_inputs(self) -> Iterator[None]:
        """Hand every state the records from its snapshot to its committed offset; what follows was written then."""
        begins = {place: one.begin for place, one in self._found.items() if one.begin < one.end}
        if not begins:
            return
        ends = {place: self._found[place].end for place in begins}
        with TopicReader(self._member.connection, begins) as reader:
            for message in reader.read_until(ends):
                restored = self._found.get((message.topic, message.partition))
                if restored is not None and message.offset < restored.end:
                    for _ in restored.state.handle(message):
                        pass
                yield


def _snapshot_offset(committed: TopicPartition) -> int:
    """Read what a member wrote beside an offset. Raises StateLost when somebody else wrote it."""
    metadata = committed.metadata or ""
    try:
        return int(json.loads(metadata)["snapshot"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise StateLost(
            f"{name_partition(_partition_of(committed))}@{committed.offset} was committed with {metadata[:80]!r}, "
            "which is not ours: did another program commit for this group? Set the offset back to where the group was"
        ) from error


def _partition_of(position: TopicPartition) -> PartitionId:
    return position.topic, position.partition
