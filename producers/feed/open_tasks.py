"""Issued tasks that have not concluded, and their form in the feeder's state. No I/O.

The state grows with the number of open tasks, so it is written in chunks, and only changed chunks are rewritten.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.producers.feed.overdue import Passed
from headrace.schemas.avro import Plain
from headrace.schemas.ids import GroupId
from headrace.schemas.topics import workflow_of

CHUNK = 32
"""Numbers per chunk: some 2 kB, more with several policies. Each number in a turn's records may change one chunk."""


@dataclass(slots=True)
class OpenTask:
    """A number that at least one policy has not concluded."""

    index: int
    """Index of its problem in the environment."""
    tier: str
    """Tier to which the environment was set; empty for the recipe's tiers."""
    partition: int
    """Partition of the newest attempt."""
    attempt: int = 0
    offset: int = -1
    """Offset of the newest attempt; -1 before its transaction was flushed."""
    unacknowledged: set[str] = field(default_factory=set)
    """Policies whose group may not have passed the curator: the workers or the curator still have the number."""
    open: set[str] = field(default_factory=set)
    """Policies for which the number is open."""
    died: int = 0
    """Sequence number of the dead letter within the run, if the number is dead; orders dead numbers by age."""
    is_home: bool = False
    """Whether its newest attempt was issued at home because its region is lost."""

    def find_queue(self, stream: str) -> str:
        """Return the stream on whose tasks topic the newest attempt is; `stream` is that of its number."""
        return workflow_of(stream) if self.is_home else stream


def iterate_passed(tasks: Mapping[GroupId, OpenTask], committed: Mapping[tuple[str, int], int]) -> Iterator[Passed]:
    """Yield the open numbers that the workers committed past and that no curator has acknowledged.

    Args:
        tasks: The open numbers.
        committed: (stream, partition) to the next offset of the workers' group.
    """
    for group, task in tasks.items():
        if task.unacknowledged and 0 <= task.offset < committed.get((task.find_queue(group.stream), task.partition), 0):
            yield Passed(group, task.attempt, tuple(sorted(task.unacknowledged)))


class TaskTable:
    """Open numbers, and dead numbers that may be reopened, in chunks of consecutive numbers of a stream."""

    def __init__(self) -> None:
        self.open: dict[GroupId, OpenTask] = {}
        self.dead: dict[GroupId, OpenTask] = {}
        """Numbers concluded by a dead letter, oldest first, with the policies for which they would be open again."""
        self._changed: set[tuple[str, int]] = set()

    @property
    def changed(self) -> int:
        """How many chunks have changed since the last call of `take_changes`."""
        return len(self._changed)

    def note_change(self, group: GroupId) -> None:
        """Note that a number is about to change, or has changed."""
        self._changed.add((group.stream, group.number // CHUNK))

    def take_changes(self) -> dict[str, Plain | None]:
        """Return, once, the changed chunks by name; None for a chunk that is now empty."""
        changed, self._changed = sorted(self._changed), set()
        return {f"{stream}|{chunk}": self._encode_chunk(stream, chunk) for stream, chunk in changed}

    def _encode_chunk(self, stream: str, chunk: int) -> Plain | None:
        """Return the open and dead numbers of a chunk as plain JSON; None if there are none."""
        groups = [GroupId(stream, number) for number in range(chunk * CHUNK, (chunk + 1) * CHUNK)]
        found = {
            name: _encode_rows({group: tasks[group] for group in groups if group in tasks})
            for name, tasks in (("open", self.open), ("dead", self.dead))
        }
        return found if any(found.values()) else None

    def restore(self, chunks: Iterable[Plain]) -> None:
        """Take chunks in any order, or one list of all numbers, as old snapshots have it."""
        for name, tasks in (("open", self.open), ("dead", self.dead)):
            found = [one for chunk in chunks for one in _decode_rows(chunk.get(name, ()))]
            tasks.update(sorted(found, key=lambda one: one[1].died))

    def forget_others(self, policies_of: Mapping[str, Collection[str]]) -> Counter[str]:
        """Close numbers for policies that the recipe no longer trains; return how many were closed, by stream.

        Args:
            policies_of: Stream to the policies that it trains now.
        """
        forgotten: Counter[str] = Counter()
        for tasks in (self.open, self.dead):
            for group, task in list(tasks.items()):
                known = set(policies_of.get(group.stream, ()))
                if task.open <= known and task.unacknowledged <= known:
                    continue
                self.note_change(group)
                task.open &= known
                task.unacknowledged &= known
                if not task.open:
                    del tasks[group]
                    forgotten[group.stream] += tasks is self.open
        return +forgotten


def _encode_rows(tasks: Mapping[GroupId, OpenTask]) -> list[list[Any]]:
    return [
        [
            *group,
            t.index,
            t.tier,
            t.partition,
            t.attempt,
            t.offset,
            sorted(t.unacknowledged),
            sorted(t.open),
            t.died,
            t.is_home,
        ]
        for group, t in tasks.items()
    ]


def _decode_rows(rows: Iterable[list[Any]]) -> Iterator[tuple[GroupId, OpenTask]]:
    """Yield the numbers in rows; rows of older builds lack the last fields."""
    for stream, number, index, tier, partition, attempt, offset, unacknowledged, is_open, *more in rows:
        task = OpenTask(index, tier, partition, attempt, offset, set(unacknowledged), set(is_open), *more)
        yield GroupId(stream, number), task
