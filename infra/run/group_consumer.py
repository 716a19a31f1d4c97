"""A member of a consumer group whose memory is one state per partition, restored exactly.

The commit metadata of each offset names the offset, in `state`, of the newest snapshot of that partition; the snapshot
names its input position. On assignment: `committed()`, which waits for a pending transaction; that one snapshot; then
the records from its position up to the committed offset, handled silently. Nobody restores from "the end" of `state`:
an open transaction hides the newest snapshot there.

A turn in which something could not be read ends with a snapshot: after a fix the same bytes, handled again, might be.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import (
    Connection,
    Message,
    Outgoing,
    good_messages,
    kafka_errors,
    open_consumer,
    patiently,
)
from headrace.infra.kafka.decoding import read_record
from headrace.infra.kafka.group_offsets import without_errors
from headrace.infra.kafka.topic_reader import Place, read_all, read_one, read_range
from headrace.infra.kafka.transactions import GroupOffsets, Ticket
from headrace.infra.stopwatch import Stopwatch
from headrace.schemas import codec
from headrace.schemas.records import Snapshot

log = structlog.get_logger()

MOST_RECORDS = 64
TURN_S = 0.15
REBALANCE_S = 30.0


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
    """Name under which its snapshots stand, and of its consumer group."""
    run_id: str
    group: str
    topics: tuple[str, ...]
    state_topic: str
    snapshot_every_s: float = 3.0


@dataclass(slots=True)
class _Held:
    """A partition that is ours."""

    state: PartitionState
    position: int
    """Next input offset after what was handled."""
    snapshot_offset: int
    """Offset in `state` of the newest snapshot; -1 before the first."""
    snapshot_due: float
    handled: bool = False
    """Records were handled since the last commit."""


class GroupConsumer:
    """Drives one `PartitionState` per assigned partition; implements the run loop's `Component`."""

    def __init__(self, membership: Membership, make_state: Callable[[Place], PartitionState]) -> None:
        self.membership = membership
        self._make_state = make_state
        self._held: dict[Place, _Held] = {}
        self._owned: set[Place] = set()
        self._due: list[Place] = []
        """Partitions whose snapshots stand in the transaction that is being written."""
        self._metadata: Any = None
        self._consumer: Consumer = open_consumer(membership.connection, membership.component, membership.group)
        self._consumer.subscribe(
            list(membership.topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_revoke,
        )

    # ------------------------------------------------------------------------------------------------------- rebalance

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Own; the states are restored before the first record is handled."""
        consumer.incremental_assign(partitions)
        self._owned.update((tp.topic, tp.partition) for tp in partitions)
        log.info("partitions.assigned", partitions=_names(partitions))

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget: what was handled is committed, and what was not belongs to the next owner."""
        consumer.incremental_unassign(partitions)
        for tp in partitions:
            self._owned.discard((tp.topic, tp.partition))
            self._held.pop((tp.topic, tp.partition), None)
        log.info("partitions.revoked", partitions=_names(partitions))

    def _committed(self, places: Iterable[Place]) -> list[TopicPartition]:
        """Return committed offsets with their metadata; waits for transactions that are pending."""
        asked = [TopicPartition(*place) for place in places]
        found: list[TopicPartition] = patiently(
            lambda: without_errors(self._consumer.committed(asked, timeout=10)),
            f"asking for committed offsets of group {self.membership.group}",
            REBALANCE_S,
        )
        return found

    # --------------------------------------------------------------------------------------------------------- restore

    def _restore(self, committed: TopicPartition) -> None:
        place: Place = (committed.topic, committed.partition)
        state, begin, end, snapshot_offset = self._make_state(place), 0, max(committed.offset, 0), -1
        if committed.metadata:
            snapshot_offset = _snapshot_offset(committed)
        if snapshot_offset >= 0:
            snapshot = self._snapshot_at(snapshot_offset, place)
            try:
                state.restore(snapshot.body)
                begin = snapshot.positions[_name(place)]
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise StateLost(
                    f"the snapshot of {_name(place)} at {self.membership.state_topic}@{snapshot_offset} cannot be "
                    f"taken back ({type(error).__name__}: {error}): was it written by another version of Headrace?"
                ) from error
        if begin < end:
            for message in read_range(self.membership.connection, place, begin, end):
                _exhaust(state.handle(message))
        due = time.monotonic() + self.membership.snapshot_every_s
        self._held[place] = _Held(state, end, snapshot_offset, due)
        log.info("state.restored", partition=_name(place), offset=end, replayed=end - begin)

    def _refuse_lost_offsets(self, places: list[Place]) -> None:
        """Refuse to begin anew where somebody has been before: all that was handled would be handled again."""
        if not places:
            return
        known = {message.key for message in read_all(self.membership.connection, [self.membership.state_topic])}
        lost = [_name(place) for place in places if self._key(place) in known]
        if lost:
            raise StateLost(
                f"group {self.membership.group} has lost its offsets of {', '.join(lost)}, where it has been: did the "
                "cluster's offsets.retention.minutes pass while the run rested? Going on would curate everything a "
                "second time; set the offsets back, or begin a new run",
            )

    def _key(self, place: Place) -> bytes:
        topic, partition = place
        return f"{self.membership.component}|{topic}|{partition}".encode()

    def _snapshot_at(self, offset: int, place: Place) -> Snapshot:
        topic, partition = place
        message = read_one(self.membership.connection, (self.membership.state_topic, 0), offset)
        snapshot = read_record(message, Snapshot) if message else None
        wanted = (self.membership.component, topic, partition)
        if snapshot is None or (snapshot.component, snapshot.topic, snapshot.partition) != wanted:
            raise StateLost(
                f"{self.membership.state_topic}@{offset} should hold the snapshot of {_name(place)}, and does not: "
                "was the topic's retention changed? Without it records could be trained twice",
            )
        return snapshot

    # ----------------------------------------------------------------------------------------------- the loop's steps

    def poll(self, watch: Stopwatch) -> list[Message]:
        """Return owned records; partitions that are new are restored first."""
        with watch.measure("consume"):
            raw = self._consumer.consume(MOST_RECORDS, 0)
        if len(raw) < MOST_RECORDS:
            with watch.measure("wait"):
                raw += self._consumer.consume(MOST_RECORDS - len(raw), TURN_S)
        self._metadata = self._consumer.consumer_group_metadata()
        if new := self._owned - self._held.keys():
            committed = self._committed(new)
            self._refuse_lost_offsets([(tp.topic, tp.partition) for tp in committed if tp.offset < 0])
            for position in committed:
                self._restore(position)
        found = good_messages(raw, f"reading {', '.join(self.membership.topics)}")
        return [m for m in found if (m.topic, m.partition) in self._held]

    def handle(self, message: Message) -> Iterable[Outgoing]:
        """Hand the record to its partition's state."""
        held = self._held[message.topic, message.partition]
        if message.offset < held.position:
            return ()
        held.position, held.handled = message.offset + 1, True
        outgoing = list(held.state.handle(message))
        if held.state.was_unread:
            held.snapshot_due = 0.0
        return outgoing

    def tick(self) -> Iterable[Outgoing]:
        """Nothing follows from time."""
        return ()

    @property
    def moved(self) -> bool:
        """Whether records were handled since the last commit."""
        return any(held.handled for held in self._held.values())

    def before_commit(self, ticked: Sequence[Ticket]) -> Iterable[Outgoing]:  # noqa: ARG002 - nothing rests on it
        """Return the snapshots that are due, of partitions that moved."""
        now = time.monotonic()
        self._due = [place for place, held in self._held.items() if held.handled and now >= held.snapshot_due]
        return [self._snapshot_record(place, self._held[place]) for place in self._due]

    def offsets(self, before: Sequence[Ticket]) -> GroupOffsets | None:
        """Return every moved partition's offset with that of its newest snapshot; `before` are those just written."""
        for place, ticket in zip(self._due, before, strict=True):
            held = self._held[place]
            held.snapshot_offset = ticket.offset
            held.snapshot_due = time.monotonic() + self.membership.snapshot_every_s
        offsets = []
        for place, held in self._held.items():
            if held.handled:
                held.handled = False
                offsets.append(TopicPartition(*place, held.position, json.dumps({"snapshot": held.snapshot_offset})))
        return GroupOffsets(offsets, self._metadata) if offsets else None

    def _snapshot_record(self, place: Place, held: _Held) -> Outgoing:
        topic, partition = place
        snapshot = Snapshot(
            run_id=self.membership.run_id,
            component=self.membership.component,
            topic=topic,
            partition=partition,
            positions={_name(place): held.position},
            body=held.state.snapshot(),
        )
        return Outgoing(self.membership.state_topic, codec.encode(snapshot), self._key(place), partition=0)

    def rewind(self) -> None:
        """Drop all memory, ask again where the group stands, and go on from there."""
        self._held.clear()
        if self._owned:
            for tp in self._committed(self._owned):
                with kafka_errors(f"going back to {_name((tp.topic, tp.partition))}@{tp.offset}"):
                    self._consumer.seek(TopicPartition(tp.topic, tp.partition, _start(tp)))

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()


def _snapshot_offset(committed: TopicPartition) -> int:
    """Read what `offsets` wrote beside an offset. Raises StateLost when somebody else wrote it."""
    metadata = committed.metadata or ""
    try:
        return int(json.loads(metadata)["snapshot"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise StateLost(
            f"{_name((committed.topic, committed.partition))}@{committed.offset} was committed with {metadata[:80]!r}, "
            "which is not ours: did another program commit for this group? Set the offset back to where the group was"
        ) from error


def _start(committed: TopicPartition) -> int:
    return committed.offset if committed.offset >= 0 else OFFSET_BEGINNING


def _name(place: Place) -> str:
    return f"{place[0]}[{place[1]}]"


def _names(partitions: Iterable[TopicPartition]) -> list[str]:
    return [f"{tp.topic}[{tp.partition}]" for tp in partitions]


def _exhaust(records: Iterable[Outgoing]) -> None:
    for _ in records:
        pass
