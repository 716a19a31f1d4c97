"""Checks that a trainer that resumes from a checkpoint would find every group that waits, and none twice. No I/O.

A pointer to a checkpoint says from which offsets a trainer reads the curated topic and `batches` again. A curated
record before these offsets is never read, and one that a skipped record of `batches` concludes would be trained again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from headrace.infra.inflection import inflect
from headrace.schemas.records import CheckpointPointer


@dataclass(slots=True)
class _Concluded:
    """Curated offsets of one partition that records on `batches` conclude; both lists ascend."""

    records: array[int] = field(default_factory=lambda: array("q"))
    """Offsets on `batches`."""
    offsets: array[int] = field(default_factory=lambda: array("q"))
    """Offsets on the curated topic."""

    def append(self, record: int, offset: int) -> None:
        self.records.append(record)
        self.offsets.append(offset)


class _Pointer(NamedTuple):
    """What a checkpoint pointer says of a resume."""

    where: str
    batches_offset: int
    positions: array[int]
    """Pairs of a partition of the curated topic and an offset, int64[2P]."""


class ResumePoints:
    """The batches and the checkpoint pointers of one policy or shadow. Batches come first, then curated records.

    At most 32 bytes are kept for every record on `batches` and partition.

    Args:
        policy: Name of the policy, or of the shadow as `policy.variant`.
        curated: Name of its curated topic.
    """

    def __init__(self, policy: str, curated: str) -> None:
        self._policy = policy
        self._curated = curated
        self._versions: dict[int, int] = {}
        """Version to the offset of its record on `batches`."""
        self._first_later: dict[int, _Concluded] = {}
        """By partition: for some records, the lowest curated offset that this or a later record concludes."""
        self._last_so_far: dict[int, _Concluded] = {}
        """By partition: for some records, the highest curated offset that this or an earlier record concludes."""
        self._waiting: dict[int, int] = {}
        """Partition to the first curated offset that no record concludes."""
        self._pointers: dict[int, _Pointer] = {}
        """Version to its newest pointer."""

    def fold_batch(self, version: int, at: int, concluded: Iterable[tuple[int, int]]) -> None:
        """Take in a record on `batches`.

        Args:
            version: Its version; -1 if it only reports evictions.
            at: Its offset on `batches`; records come in order.
            concluded: (partition, offset) of the curated records that it concludes; -1 for unknown offsets.
        """
        if version >= 0:
            self._versions.setdefault(version, at)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for partition, offset in concluded:
            if offset >= 0:
                first[partition] = min(first.get(partition, offset), offset)
                last[partition] = max(last.get(partition, offset), offset)
        for partition, offset in first.items():
            known = self._first_later.setdefault(partition, _Concluded())
            while known.offsets and known.offsets[-1] >= offset:
                known.records.pop()
                known.offsets.pop()
            known.append(at, offset)
        for partition, offset in last.items():
            known = self._last_so_far.setdefault(partition, _Concluded())
            if not known.offsets or known.offsets[-1] < offset:
                known.append(at, offset)

    def note_waiting(self, partition: int, offset: int) -> None:
        """Take in the position of a curated record that no record on `batches` and no dead letter concludes."""
        self._waiting[partition] = min(self._waiting.get(partition, offset), offset)

    def fold_pointer(self, pointer: CheckpointPointer, where: str) -> None:
        """Take in a pointer and its position; it may be newer than the batches."""
        positions = array("q", chain.from_iterable((one.partition, one.offset) for one in pointer.positions))
        self._pointers[pointer.version] = _Pointer(where, pointer.batches_offset, positions)

    def problems(self, read_to: Mapping[int, int]) -> Iterator[str]:
        """Yield what is wrong with the pointers; of several with the same fault, the newest, and how many there are.

        Args:
            read_to: Partition of the curated topic to the trainer's newest position in its records.
        """
        first, found = min(self._versions, default=0), dict[str, list[str]]()
        for version, pointer in sorted(self._pointers.items(), reverse=True):
            if version in self._versions or version < first:
                at = self._versions.get(version, -1)
                name = f"the checkpoint of version {version} of {self._policy}, {pointer.where}, says that a trainer"
                for fault, what in (
                    *self._find_skipped_batches(pointer, at),
                    *self._find_skipped_groups(pointer, at, read_to),
                ):
                    found.setdefault(fault, []).append(f"{name} must read {what}")
        for sentences in found.values():
            older = len(sentences) - 1
            others = f" (and {older} older {inflect(older, 'checkpoint')} likewise)" if older else ""
            yield sentences[0] + others

    def _find_skipped_batches(self, pointer: _Pointer, at: int) -> Iterator[tuple[str, str]]:
        """Yield a name for each fault, and what is wrong."""
        begin, positions = pointer.batches_offset, dict(_iterate_pairs(pointer.positions))
        if at < begin and begin > 0:
            own = f"its own record is at offset {at}" if at >= 0 else "no record there is older than it"
            yield "batches", f"`batches` from offset {begin}, but {own}"
            return
        for partition, known in self._last_so_far.items():
            place = bisect_left(known.offsets, positions.get(partition, 0))
            if place < len(known.records) and known.records[place] < begin:
                group = f"{self._curated}[{partition}]@{known.offsets[place]}"
                named = f"the record at offset {known.records[place]} names the group at {group}"
                yield f"again {partition}", f"`batches` from offset {begin}, but {named}, which would be trained again"

    def _find_skipped_groups(self, pointer: _Pointer, at: int, read_to: Mapping[int, int]) -> Iterator[tuple[str, str]]:
        """Yield a name for each fault, and what is wrong."""
        for partition, begin in _iterate_pairs(pointer.positions):
            says = f"{self._curated}[{partition}] from offset {begin}, but"
            known = self._first_later.get(partition, _Concluded())
            place = bisect_right(known.records, at)
            if place < len(known.offsets) and known.offsets[place] < begin:
                by = f"the record at offset {known.records[place]} of `batches`"
                yield (
                    f"later {partition}",
                    f"{says} the group at offset {known.offsets[place]} was concluded later, by {by}",
                )
            elif self._waiting.get(partition, begin) < begin:
                group = f"the group at offset {self._waiting[partition]}"
                yield f"waiting {partition}", f"{says} {group} is neither trained nor evicted, and would never be read"
            elif begin > read_to.get(partition, begin):
                yield f"unread {partition}", f"{says} the trainer has read it only to offset {read_to[partition]}"


def _iterate_pairs(numbers: array[int]) -> Iterator[tuple[int, int]]:
    return zip(numbers[::2], numbers[1::2], strict=True)
