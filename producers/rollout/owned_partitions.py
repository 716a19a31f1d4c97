"""The partitions that are ours: which of their tasks are started and done, and what a commit records of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.producers.rollout.started_task import StartedTask
from headrace.producers.task_ledger import TaskLedger

TaskPlace = tuple[PartitionId, int]
"""Partition and offset of a task."""


class PartitionCommit(NamedTuple):
    """What a commit records of a partition."""

    topic: str
    partition: int
    offset: int
    metadata: str
    """What the task ledger holds beside the offset, at most 4,096 bytes."""


@dataclass(slots=True)
class _Owned:
    """A partition that is ours."""

    ledger: TaskLedger
    ownership: int
    dirty: bool = False
    """Changed since its newest commit."""


class OwnedPartitions:
    """Pure memory without I/O or a clock; one thread has it. The same partition, owned again, is another ownership.

    Args:
        run_id: Id of the run whose tasks these are.
    """

    def __init__(self, run_id: str) -> None:
        self.running: set[TaskPlace] = set()
        """Tasks that are started and not done."""
        self.alone: TaskPlace | None = None
        """The task beside which nothing may start."""
        self._run_id = run_id
        self._owned: dict[PartitionId, _Owned] = {}
        self._ownerships = count(1)

    def __len__(self) -> int:
        return len(self._owned)

    def __contains__(self, place: PartitionId) -> bool:
        return place in self._owned

    def __iter__(self) -> Iterator[PartitionId]:
        return iter(self._owned)

    def ledger(self, place: PartitionId) -> TaskLedger:
        """Return the ledger of a partition that is ours."""
        return self._owned[place].ledger

    def own(self, place: PartitionId, offset: int, metadata: str) -> int:
        """Own a partition from what the group committed there; return the offset to read from."""
        ledger = TaskLedger(offset, metadata, self._run_id)
        self._owned[place] = _Owned(ledger, next(self._ownerships))
        return ledger.position

    def disown(self, places: Collection[PartitionId]) -> None:
        """Forget partitions, and what runs of them."""
        for place in places:
            self._owned.pop(place, None)
        self.running = {running for running in self.running if running[0] not in places}
        if self.alone not in self.running:
            self.alone = None

    def receive(self, message: Message) -> bool:
        """Take in a message; False when its task is done already, or its partition is not ours."""
        owned = self._owned.get((message.topic, message.partition))
        if owned is None:
            return False
        if owned.ledger.receive(message.offset):
            return True
        owned.dirty = True
        return False

    def start(self, place: PartitionId, offset: int) -> int:
        """Count a start, which has to be committed before the task runs; return the ownership that it is in."""
        owned = self._owned[place]
        owned.ledger.start(offset)
        owned.dirty = True
        self.running.add((place, offset))
        return owned.ownership

    def mark_done(self, started: StartedTask) -> None:
        """Mark a task as concluded, unless it was started in an earlier ownership: the next owner plays it again."""
        place, offset = started.place, started.message.offset
        owned = self._owned.get(place)
        if owned is None or owned.ownership != started.ownership:
            return
        self.running.discard((place, offset))
        if self.alone == (place, offset):
            self.alone = None
        owned.ledger.mark_done(offset)
        owned.dirty = True

    def reset_starts(self, places: Iterable[PartitionId]) -> None:
        """Take back our starts of what is open on some partitions: we leave them in good order."""
        for place in places:
            self._owned[place].ledger.reset_starts()

    def list_changed(self) -> list[PartitionId]:
        """Return the partitions that changed since their newest commit."""
        return [place for place, owned in self._owned.items() if owned.dirty]

    def list_commits(self, places: Iterable[PartitionId]) -> list[PartitionCommit]:
        """Return what is to be committed of some partitions."""
        return [PartitionCommit(*place, *self._owned[place].ledger.commit()) for place in places]

    def note_committed(self, places: Iterable[PartitionId]) -> None:
        """Note that what `commits` returned is committed."""
        for place in places:
            self._owned[place].dirty = False
