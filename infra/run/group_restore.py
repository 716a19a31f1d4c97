"""Restores the partitions of a group consumer with one reader of snapshots and one reader of inputs.

A member of a group must keep polling, so each call works for a limited time. A restore never uses "the end" of `state`,
because an open transaction may hide the newest snapshot there.

If Kafka has deleted the offsets of a stopped group, the newest snapshot replaces them. Then inputs after the snapshot
are handled again in memory as long as their output records are on the log.
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
from headrace.infra.kafka.topic_admin import describe_branching
from headrace.infra.kafka.topic_reader import PartitionId, TopicReader, name_partition, refuse_lost_tail
from headrace.schemas.records import Snapshot

log = structlog.get_logger()


MessageIdentity = tuple[bytes, tuple[tuple[str, bytes | None], ...]]
"""Key and headers of a message."""


class StateLost(HeadraceError):
    """The snapshot of a committed offset is missing or unknown."""


class PartitionState(Protocol):
    """The state of one input partition: a function of its records in order, and of no clock.

    The only I/O is to fetch the groups that records name.
    """

    @property
    def is_last_refused(self) -> bool:
        """Whether the last handled record became a dead letter."""

    def handle(self, message: Message) -> Iterable[Outgoing]:
        """Take in one record; return the resulting records."""

    def snapshot(self) -> bytes:
        """Return the state."""

    def restore(self, body: bytes) -> None:
        """Restore the state of a snapshot."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Identity and topics of a group consumer."""

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
    def state_partition_id(self) -> PartitionId:
        """Topic and partition of its snapshots."""
        return self.state_topic, self.state_partition

    def describe_forgetting(self, partition_id: PartitionId) -> str:
        """Return the advice to restore a partition from its newest snapshot by deleting its committed offset."""
        topic, partition = partition_id
        return (
            "stop the run, delete the committed offset by `kafka-consumer-groups --bootstrap-server "
            f"{self.connection.bootstrap} --group {self.group} --topic {topic}:{partition} --delete-offsets`, and give "
            "the run's command again: the curator then continues from its newest snapshot"
        )

    @property
    def branch_remedy(self) -> str:
        """Advice to continue without the state: trained weights are kept, untrained curated groups are lost."""
        run = self.state_topic.partition(".")[0]
        return (
            f"begin a new run with the weights of {run} by "
            f"{describe_branching(self.connection.bootstrap, run, f'{run}-2')}; "
            "groups that are not trained on yet are lost"
        )

    def key(self, partition_id: PartitionId) -> bytes:
        """Return the key of a partition's snapshots."""
        topic, partition = partition_id
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
    was_lost: bool = False
    """Whether Kafka had deleted its offset, so that `end` was found from the log."""


class Restore:
    """Restores partitions in limited steps.

    Args:
        member: The owner of the partitions.
        committed: Committed offsets with metadata; negative if never committed.
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
        self._lost: dict[PartitionId, int] = {}
        """Partitions whose offsets Kafka has deleted, with the offsets of their newest snapshots."""
        self._bodies: dict[PartitionId, bytes] = {}
        """The contents of these snapshots."""
        self._written: dict[PartitionId, set[MessageIdentity]] = {}
        """The records in the partitions of output topics."""
        self._steps = self._restore_all()

    def drop(self, partition_ids: Iterable[PartitionId]) -> None:
        """Stop restoring these partitions, which another member now owns."""
        for partition_id in partition_ids:
            self._committed.pop(partition_id, None)
            self._found.pop(partition_id, None)

    def continue_for(self, most_s: float) -> dict[PartitionId, Restored] | None:
        """Work for at most `most_s` seconds plus one step; return all states when all are restored, else None.

        Raises StateLost, LogTruncated, KafkaAway, KafkaRefused, and errors of a state.
        """
        end = time.monotonic() + most_s
        for _ in self._steps:
            if time.monotonic() >= end:
                return None
        for partition_id, one in self._found.items():
            # The curator has restored its state of a partition, and read `replayed` records again.
            log.info(
                "state.restored", partition=name_partition(partition_id), offset=one.end, replayed=one.end - one.begin
            )
        return self._found

    def close(self) -> None:
        """Stop, and close the readers."""
        self._steps.close()

    def _restore_all(self) -> Generator[None]:
        """Restore all partitions, yielding after each record."""
        positions = {partition_id: one.offset for partition_id, one in self._committed.items()}
        refuse_lost_tail(self._member.connection, positions)
        yield from self._find_lost_offsets()
        for partition_id, position in self._committed.items():
            snapshot_offset = self._find_snapshot(position)
            end, was_lost = max(position.offset, 0), partition_id in self._lost
            self._found[partition_id] = Restored(self._make_state(partition_id), 0, end, snapshot_offset, was_lost)
        yield from self._restore_from_snapshots()
        for partition_id in self._lost:
            yield from self._recover_end(partition_id)
        yield from self._handle_inputs()

    def _find_lost_offsets(self) -> Iterator[None]:
        """Find the newest snapshots of partitions whose committed offsets are missing although they were used.

        Without this, everything would be curated a second time. A cluster deletes the offsets of a group that is
        stopped for longer than offsets.retention.minutes.
        """
        new = {
            self._member.key(partition_id): partition_id
            for partition_id, one in self._committed.items()
            if one.offset < 0
        }
        if not new:
            return
        with TopicReader(self._member.connection, {self._member.state_partition_id: 0}) as reader:
            for message in reader.catch_up():
                if (partition_id := new.get(message.key)) is not None:
                    self._lost[partition_id] = message.offset
                yield

    def _recover_end(self, partition_id: PartitionId) -> Iterator[None]:
        """Find how far a partition was handled: as far as the output of its records is on the log.

        A state is a function of its records, and their output was written together with the deleted offset. Records
        without output are handled again with the same result.
        """
        if partition_id not in self._found:
            return
        one, state = self._found[partition_id], self._make_state(partition_id)
        state.restore(self._bodies[partition_id])
        one.end = one.begin
        with TopicReader(self._member.connection, {partition_id: one.begin}) as reader:
            for message in reader.catch_up():
                first = next((record for record in list(state.handle(message)) if record.partition >= 0), None)
                yield
                if first is None:
                    continue
                written_to = first.topic, first.partition
                if written_to not in self._written:
                    yield from self._read_written(written_to)
                if _identify(first) not in self._written[written_to]:
                    break
                one.end = message.offset + 1
        # Kafka has deleted the group's offset; the curator goes on from its newest snapshot and the records after it.
        log.warning(
            "offsets.recovered", partition=name_partition(partition_id), offset=one.end, group=self._member.group
        )

    def _read_written(self, partition_id: PartitionId) -> Iterator[None]:
        known = self._written[partition_id] = set()
        with TopicReader(self._member.connection, {partition_id: 0}) as reader:
            for message in reader.catch_up():
                known.add(_identify(message))
                yield

    def _restore_from_snapshots(self) -> Iterator[None]:
        wanted = {
            one.snapshot_offset: partition_id for partition_id, one in self._found.items() if one.snapshot_offset >= 0
        }
        if not wanted:
            return
        where = self._member.state_partition_id
        with TopicReader(self._member.connection, {where: min(wanted)}) as reader:
            for message in reader.read_until({where: min(max(wanted) + 1, reader.ends()[where])}):
                if (partition_id := wanted.pop(message.offset, None)) is not None and partition_id in self._found:
                    self._restore_from_snapshot(message, partition_id)
                yield
        for offset, partition_id in wanted.items():
            if partition_id in self._found:
                raise self._no_snapshot_error(offset, partition_id)

    def _restore_from_snapshot(self, message: Message, partition_id: PartitionId) -> None:
        snapshot = read_record(message, Snapshot)
        if snapshot is None or (snapshot.component, snapshot.topic, snapshot.partition) != (
            self._member.component,
            *partition_id,
        ):
            raise self._no_snapshot_error(message.offset, partition_id)
        try:
            self._found[partition_id].state.restore(snapshot.body)
            self._found[partition_id].begin = snapshot.positions[name_partition(partition_id)]
            if partition_id in self._lost:
                self._bodies[partition_id] = snapshot.body
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise StateLost(
                f"the snapshot of {name_partition(partition_id)} at {self._member.state_topic}@{message.offset} cannot "
                f"be restored ({type(error).__name__}: {error}). If another version of Headrace wrote it, nothing is "
                f"lost: give the same command with that version. Otherwise {self._member.branch_remedy}"
            ) from error

    def _no_snapshot_error(self, offset: int, partition_id: PartitionId) -> StateLost:
        return StateLost(
            f"{self._member.state_topic}@{offset} should hold the snapshot of {name_partition(partition_id)}, but does "
            "not. The topic's retention may have been changed, or the consumer group's offsets set back. If there may "
            f"be a newer snapshot, {self._member.describe_forgetting(partition_id)}. Otherwise it is not known which "
            "groups of this partition were trained on, and some could be trained on twice: "
            f"{self._member.branch_remedy}",
        )

    def _find_snapshot(self, committed: TopicPartition) -> int:
        """Return the offset of a partition's newest snapshot by its commit; -1 before the first.

        Raises StateLost if another program wrote the commit's metadata.
        """
        metadata, partition_id = "(not UTF-8)", _partition_of(committed)
        try:  # the text of another client may not be decoded, which is a ValueError: see `read_metadata`
            metadata = committed.metadata or ""
            if not metadata:
                return self._lost.get(partition_id, -1)
            return int(json.loads(metadata)["snapshot"])
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise StateLost(
                f"offset {committed.offset} of {name_partition(partition_id)} was committed with metadata "
                f"{metadata[:80]!r}, not written by Headrace: another program commits offsets for consumer group "
                f"{self._member.group}. No group is lost. End that program, "
                f"{self._member.describe_forgetting(partition_id)}"
            ) from error

    def _handle_inputs(self) -> Iterator[None]:
        """Pass every state the records from its snapshot to its committed offset; their output is on the log."""
        begins = {partition_id: one.begin for partition_id, one in self._found.items() if one.begin < one.end}
        if not begins:
            return
        ends = {partition_id: self._found[partition_id].end for partition_id in begins}
        with TopicReader(self._member.connection, begins) as reader:
            for message in reader.read_until(ends):
                restored = self._found.get((message.topic, message.partition))
                if restored is not None and message.offset < restored.end:
                    for _ in restored.state.handle(message):
                        pass
                yield


def _identify(record: Message | Outgoing) -> MessageIdentity:
    """Return the identity of a record within its topic."""
    return record.key, tuple(record.headers)


def _partition_of(position: TopicPartition) -> PartitionId:
    return position.topic, position.partition
