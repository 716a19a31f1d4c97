"""The partitions that this worker owns: their started and done tasks, and the data for their commits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.producers.rollout.intake.started_task import StartedTask
from headrace.producers.task_ledger import TaskLedger

TaskOffset = tuple[PartitionId, int]
"""Partition and offset of a task."""


class PartitionCommit(NamedTuple):
    """The commit of one partition."""

    topic: str
    partition: int
    offset: int
    metadata: str
    """Content of the task ledger beside the offset, at most 4,096 bytes."""


@dataclass(slots=True)
class _Owned:
    """A partition that this worker owns."""

    ledger: TaskLedger
    ownership: int
    dirty: bool = False
    """Whether it changed since its newest commit."""


class OwnedPartitions:
    """The owned partitions, without I/O or a clock, for one thread. Owning a partition again is a new ownership.

    Args:
        run_id: Id of the run whose tasks these are.
        owner: Name of this worker.
    """

    def __init__(self, run_id: str, owner: str = "") -> None:
        self.running: set[TaskOffset] = set()
        """Tasks that are started but not done."""
        self.alone: TaskOffset | None = None
        """The task that must run alone."""
        self._run_id, self._owner = run_id, owner
        self._owned: dict[PartitionId, _Owned] = {}
        self._ownerships = count(1)

    def __len__(self) -> int:
        return len(self._owned)

    def __contains__(self, partition_id: PartitionId) -> bool:
        return partition_id in self._owned

    def __iter__(self) -> Iterator[PartitionId]:
        return iter(self._owned)

    def ledger(self, partition_id: PartitionId) -> TaskLedger:
        """Return the ledger of an owned partition."""
        return self._owned[partition_id].ledger

    def own(self, partition_id: PartitionId, offset: int, metadata: str) -> int:
        """Own a partition, starting from the group's commit; return the offset to read from."""
        ledger = TaskLedger(offset, metadata, self._run_id, self._owner)
        self._owned[partition_id] = _Owned(ledger, next(self._ownerships))
        return ledger.position

    def disown(self, partition_ids: Collection[PartitionId]) -> None:
        """Forget partitions and their running tasks."""
        for partition_id in partition_ids:
            self._owned.pop(partition_id, None)
        self.running = {running for running in self.running if running[0] not in partition_ids}
        if self.alone not in self.running:
            self.alone = None

    def receive(self, message: Message) -> bool:
        """Take in a message; return False if its task is already done or its partition is not owned."""
        owned = self._owned.get((message.topic, message.partition))
        if owned is None:
            return False
        if owned.ledger.receive(message.offset):
            return True
        owned.dirty = True
        return False

    def start(self, partition_id: PartitionId, offset: int) -> int:
        """Count a start, which must be committed before the task runs; return the number of the ownership."""
        owned = self._owned[partition_id]
        owned.ledger.add_start(offset)
        owned.dirty = True
        self.running.add((partition_id, offset))
        return owned.ownership

    def mark_done(self, started: StartedTask) -> None:
        """Mark a task as concluded. Ignore a task started in an earlier ownership: the next owner plays it again."""
        partition_id, offset = started.partition_id, started.message.offset
        owned = self._owned.get(partition_id)
        if owned is None or owned.ownership != started.ownership:
            return
        self.running.discard((partition_id, offset))
        if self.alone == (partition_id, offset):
            self.alone = None
        owned.ledger.mark_done(offset)
        owned.dirty = True

    def reset_starts(self, partition_ids: Iterable[PartitionId]) -> None:
        """Take back the starts of open tasks on some partitions, when the worker leaves them in an orderly way."""
        for partition_id in partition_ids:
            self._owned[partition_id].ledger.reset_starts()

    def list_changed(self) -> list[PartitionId]:
        """Return the partitions that changed since their newest commit."""
        return [partition_id for partition_id, owned in self._owned.items() if owned.dirty]

    def list_commits(self, partition_ids: Iterable[PartitionId]) -> list[PartitionCommit]:
        """Return the commits of some partitions."""
        return [
            PartitionCommit(*partition_id, *self._owned[partition_id].ledger.commit()) for partition_id in partition_ids
        ]

    def note_sent(self, partition_ids: Iterable[PartitionId]) -> None:
        """Note that the result of `list_commits` is sent."""
        for partition_id in partition_ids:
            self._owned[partition_id].dirty = False

    def note_refused(self, partition_ids: Iterable[PartitionId]) -> None:
        """Note that a commit was not accepted: it must be sent again for the partitions that are still owned."""
        for partition_id in self._owned.keys() & set(partition_ids):
            self._owned[partition_id].dirty = True
