"""A member of a consumer group with one state per partition, which is restored exactly.

The commit metadata of each offset names the newest snapshot of that partition by its offset in the topic `state`, and
the snapshot names its input position. When a partition is assigned, the member first asks for the committed offset,
which waits for a pending transaction. It then reads that one snapshot, and handles the records from its position up to
the committed offset without writing. The partition is paused until it is restored.

The length of a turn is limited: what it writes must reach the broker within the transaction's time even on a slow
connection, and a member that reads from a slow store must poll now and then. What is left comes first in the next
turn.

A turn with an unreadable record ends with a snapshot, because after a fix the same bytes might be readable.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from headrace.infra.kafka.broker_contact import BrokerContact
from headrace.infra.kafka.clients import (
    KafkaRefused,
    Message,
    Outgoing,
    call_patiently,
    open_consumer,
    translate_kafka_errors,
)
from headrace.infra.kafka.group_offsets import MEMBERSHIP_MOVES, refuse_errors
from headrace.infra.kafka.received import take_good_messages
from headrace.infra.kafka.topic_reader import PartitionId, name_partition, refuse_lost_tail
from headrace.infra.kafka.transactions import GroupOffsets, Ticket
from headrace.infra.process.signals import MustRestart
from headrace.infra.run.group_restore import Membership, PartitionState, Restore, Restored
from headrace.infra.stopwatch import Stopwatch
from headrace.schemas import codec
from headrace.schemas.records import Snapshot

log = structlog.get_logger()

MOST_TURN_RECORDS = 64
MOST_TURN_BYTES = 8 << 20
"""Most bytes written in one turn, plus one record."""
MOST_S = 2.0
"""Most seconds of handling in one turn, plus one record."""
CONSUMER_TURN_S = 0.15
REBALANCE_S = 30.0
RESTORE_S = 2.0
"""Seconds of restoring in one poll."""


@dataclass(slots=True)
class _Held:
    """A partition that this member owns."""

    state: PartitionState
    position: int
    """Next input offset to handle."""
    snapshot_offset: int
    """Offset in `state` of the newest snapshot; -1 before the first."""
    snapshot_due: float
    handled: bool = False
    """Whether records were handled since the last commit."""


class GroupConsumer:
    """Drives one `PartitionState` per assigned partition; implements the run loop's `Component`.

    Args:
        membership: Identity and topics of the member.
        make_state: Returns the empty state of a partition.
        when_idle: Called after a poll without records.
    """

    def __init__(
        self,
        membership: Membership,
        make_state: Callable[[PartitionId], PartitionState],
        when_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self.membership = membership
        self._when_idle = when_idle
        self._make_state = make_state
        self._held: dict[PartitionId, _Held] = {}
        self._owned: set[PartitionId] = set()
        self._restore: Restore | None = None
        """Restore of assigned partitions that are not held yet."""
        self._left: list[Message] = []
        """Records left over from the last turn."""
        self._turn_began, self._turn_bytes = math.inf, 0
        """When the turn's first record was handled, and the bytes written so far."""
        self._due: list[PartitionId] = []
        """Partitions whose snapshots are in the current transaction."""
        self._metadata: Any = None
        self._consumer: Consumer = open_consumer(membership.connection, membership.component, membership.group)
        self._contact = BrokerContact(self._consumer, membership.connection, membership.topics[0])
        self._consumer.subscribe(
            list(membership.topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_revoke,
        )

    # ------------------------------------------------------------------------------------------------------- rebalance

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Own partitions; their states are restored before the first record is read."""
        consumer.incremental_assign(partitions)
        consumer.pause(partitions)
        self._owned.update((tp.topic, tp.partition) for tp in partitions)
        log.info("partitions.assigned", partitions=_name_partitions(partitions))

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget partitions: handled records are committed, and others belong to the next owner."""
        consumer.incremental_unassign(partitions)
        lost = {(tp.topic, tp.partition) for tp in partitions}
        self._owned -= lost
        for partition_id in lost:
            self._held.pop(partition_id, None)
        self._left = [message for message in self._left if (message.topic, message.partition) not in lost]
        if self._restore is not None:
            self._restore.drop(lost)
        log.info("partitions.revoked", partitions=_name_partitions(partitions))

    def _fetch_committed(self, partition_ids: Iterable[PartitionId]) -> list[TopicPartition]:
        """Return committed offsets with their metadata; wait for pending transactions."""
        asked = [TopicPartition(*partition_id) for partition_id in partition_ids]
        doing = f"asking for committed offsets of group {self.membership.group}"

        def ask() -> list[TopicPartition]:
            self._contact.refuse_loss(is_answered=False, doing=doing)
            return refuse_errors(self._consumer.committed(asked, timeout=10))

        try:
            found: list[TopicPartition] = call_patiently(ask, doing, REBALANCE_S)
        except KafkaRefused as error:
            if isinstance(error.__cause__, KafkaException) and error.__cause__.args[0].code() in MEMBERSHIP_MOVES:
                raise MustRestart(f"{error}; the component joins the group anew") from error
            raise
        return found

    # --------------------------------------------------------------------------------------------------------- restore

    def _continue_restore(self) -> None:
        """Continue restoring new partitions for a limited time; hold and read restored ones."""
        if self._restore is None:
            if not (new := self._owned - self._held.keys()):
                return
            self._restore = Restore(self.membership, self._fetch_committed(new), self._make_state)
        restored = self._restore.continue_for(RESTORE_S)
        if restored is None:
            return
        self._close_restore()
        for partition_id, one in restored.items():
            self._hold(partition_id, one)
        with translate_kafka_errors("consuming the next records"):
            for partition_id, one in restored.items():
                if one.was_lost:
                    self._consumer.seek(TopicPartition(*partition_id, one.end))
            self._consumer.resume([TopicPartition(*partition_id) for partition_id in restored])

    def _close_restore(self) -> None:
        if self._restore is not None:
            self._restore.close()
        self._restore = None

    def _hold(self, partition_id: PartitionId, one: Restored) -> None:
        """Hold a restored partition; its first snapshot goes into the transaction of its first offset.

        Without a snapshot, a partition whose offset Kafka has deleted looks as if it had never been read.
        """
        due = time.monotonic() + self.membership.snapshot_every_s if one.snapshot_offset >= 0 else 0.0
        self._held[partition_id] = _Held(one.state, one.end, one.snapshot_offset, due)

    # ----------------------------------------------------------------------------------------------- the loop's steps

    def poll(self, watch: Stopwatch) -> list[Message]:
        """Return records of owned partitions, the last turn's leftovers first; continue restoring new partitions."""
        most = max(MOST_TURN_RECORDS - len(self._left), 1)
        with watch.measure("consume"):
            raw = self._consumer.consume(most, 0)
        if len(raw) < most and not self._left and self._restore is None:
            with watch.measure("wait"):
                raw += self._consumer.consume(most - len(raw), CONSUMER_TURN_S)
        doing = f"reading {', '.join(self.membership.topics)}"
        self._contact.refuse_loss(is_answered=bool(raw), doing=doing)
        self._metadata = self._consumer.consumer_group_metadata()
        self._continue_restore()
        found = take_good_messages(raw, doing)
        left, self._left = self._left, []
        messages = [m for m in (*left, *found) if (m.topic, m.partition) in self._held]
        if behind := {(m.topic, m.partition) for m in messages if m.offset < self._held[m.topic, m.partition].position}:
            refuse_lost_tail(
                self.membership.connection, {partition_id: self._held[partition_id].position for partition_id in behind}
            )
        self._turn_began, self._turn_bytes = math.inf, 0
        if not messages and self._restore is None:
            self._when_idle()
        return messages

    def handle(self, message: Message) -> Iterable[Outgoing]:
        """Pass the record to its partition's state, or keep it for the next turn if this turn is full."""
        if self._is_turn_full:
            self._left.append(message)
            return ()
        held = self._held[message.topic, message.partition]
        if message.offset < held.position:
            return ()
        self._turn_began = min(self._turn_began, time.monotonic())
        held.position, held.handled = message.offset + 1, True
        outgoing = list(held.state.handle(message))
        self._turn_bytes += sum(len(one.value) for one in outgoing)
        if held.state.is_last_refused:
            held.snapshot_due = 0.0
        return outgoing

    @property
    def _is_turn_full(self) -> bool:
        late = time.monotonic() - self._turn_began > MOST_S
        return bool(self._left) or self._turn_bytes >= MOST_TURN_BYTES or late

    def tick(self) -> Iterable[Outgoing]:
        """Return nothing: only records give output."""
        return ()

    @property
    def is_commit_due(self) -> bool:
        """Whether records were handled since the last commit."""
        return any(held.handled for held in self._held.values())

    def before_commit(self, ticked: Sequence[Ticket]) -> Iterable[Outgoing]:  # noqa: ARG002 - not needed
        """Return the due snapshots of partitions with handled records."""
        now = time.monotonic()
        self._due = [
            partition_id for partition_id, held in self._held.items() if held.handled and now >= held.snapshot_due
        ]
        return [self._build_snapshot(partition_id, self._held[partition_id]) for partition_id in self._due]

    def offsets(self, before: Sequence[Ticket]) -> GroupOffsets | None:
        """Return the offsets of partitions with handled records, with their newest snapshots' offsets as metadata."""
        for partition_id, ticket in zip(self._due, before, strict=True):
            held = self._held[partition_id]
            held.snapshot_offset = ticket.offset
            held.snapshot_due = time.monotonic() + self.membership.snapshot_every_s
        offsets = []
        for partition_id, held in self._held.items():
            if held.handled:
                held.handled = False
                offsets.append(
                    TopicPartition(*partition_id, held.position, json.dumps({"snapshot": held.snapshot_offset}))
                )
        return GroupOffsets(offsets, self._metadata) if offsets else None

    def _build_snapshot(self, partition_id: PartitionId, held: _Held) -> Outgoing:
        topic, partition = partition_id
        snapshot = Snapshot(
            run_id=self.membership.run_id,
            component=self.membership.component,
            topic=topic,
            partition=partition,
            positions={name_partition(partition_id): held.position},
            body=held.state.snapshot(),
        )
        state_topic, state_partition = self.membership.state_partition_id
        key = self.membership.key(partition_id)
        return Outgoing(state_topic, codec.encode(snapshot), key, partition=state_partition)

    def rewind(self) -> None:
        """Drop all memory, fetch the committed offsets again, and continue from there."""
        self._held.clear()
        self._left.clear()
        self._close_restore()
        if self._owned:
            committed = self._fetch_committed(self._owned)
            with translate_kafka_errors("finding the last committed offsets"):
                self._consumer.pause(committed)
            for tp in committed:
                with translate_kafka_errors(f"seeking to {name_partition((tp.topic, tp.partition))}@{tp.offset}"):
                    self._seek(TopicPartition(tp.topic, tp.partition, _start_offset_of(tp)))

    def _seek(self, tp: TopicPartition) -> None:
        """Seek to an offset; ignore a partition just assigned, which begins at its committed offset anyway."""
        try:
            self._consumer.seek(tp)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:  # noqa: SLF001 - librdkafka has not fetched its offset yet
                raise

    def close(self) -> None:
        """Leave the group."""
        self._close_restore()
        self._consumer.close()


def _start_offset_of(committed: TopicPartition) -> int:
    return committed.offset if committed.offset >= 0 else OFFSET_BEGINNING


def _name_partitions(partitions: Iterable[TopicPartition]) -> list[str]:
    return [name_partition((tp.topic, tp.partition)) for tp in partitions]
