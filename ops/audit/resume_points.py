"""Checks that a trainer that resumes from a checkpoint would find every group that waits, and none twice. No I/O.

A pointer to a checkpoint says from which offsets a trainer reads the curated topic and `batches` again. A curated
record before these offsets is never read, and one that a skipped record of `batches` concludes would be trained again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

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


class ResumePoints:
    """The batches and the checkpoint pointers of one policy or shadow. Batches come first, then curated records.

    At most 32 bytes are kept for every batch and partition.

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
        self._open: dict[int, int] = {}
        """Partition to the first curated offset that no record concludes."""
        self._pointers: dict[int, tuple[CheckpointPointer, str]] = {}
        """Version to its newest pointer, and the pointer's position."""

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

    def note_open(self, partition: int, offset: int) -> None:
        """Take in the position of a curated record that no record on `batches` concludes."""
        self._open[partition] = min(self._open.get(partition, offset), offset)

    def fold_pointer(self, pointer: CheckpointPointer, where: str) -> None:
        """Take in a pointer; it may be newer than the batches."""
        self._pointers[pointer.version] = pointer, where

    def problems(self, read_to: Mapping[int, int]) -> Iterator[str]:
        """Yield what is wrong with the pointers.

        Args:
            read_to: Partition of the curated topic to the trainer's newest position in its records.
        """
        first = min(self._versions, default=0)
        for version, (pointer, where) in sorted(self._pointers.items()):
            if version in self._versions or version < first:
                at = self._versions.get(version, -1)
                name = f"the checkpoint of version {version} of {self._policy}, {where},"
                yield from self._find_skipped_batches(pointer, at, name)
                yield from self._find_skipped_groups(pointer, at, name, read_to)

    def _find_skipped_batches(self, pointer: CheckpointPointer, at: int, name: str) -> Iterator[str]:
        begin = pointer.batches_offset
        if at < begin and begin > 0:
            of_version = "" if at < 0 else f", which is after its own record at offset {at}"
            yield f"{name} says that a trainer must read `batches` from offset {begin}{of_version}"
            return
        positions = {one.partition: one.offset for one in pointer.positions}
        for partition, known in self._last_so_far.items():
            place = bisect_left(known.offsets, positions.get(partition, 0))
            if place < len(known.records) and known.records[place] < begin:
                yield (
                    f"{name} says that a trainer must read `batches` from offset {begin}, but the record at offset "
                    f"{known.records[place]} names the group at {self._curated}[{partition}]@{known.offsets[place]}, "
                    "which would be trained again"
                )

    def _find_skipped_groups(
        self, pointer: CheckpointPointer, at: int, name: str, read_to: Mapping[int, int]
    ) -> Iterator[str]:
        for one in pointer.positions:
            says = f"{name} says that a trainer must read {self._curated}[{one.partition}] from offset {one.offset}"
            known = self._first_later.get(one.partition, _Concluded())
            place = bisect_right(known.records, at)
            if place < len(known.offsets) and known.offsets[place] < one.offset:
                yield (
                    f"{says}, but the group at offset {known.offsets[place]} was concluded later, by the record at "
                    f"offset {known.records[place]} of `batches`"
                )
            elif self._open.get(one.partition, one.offset) < one.offset:
                yield f"{says}, but the group at offset {self._open[one.partition]} still waits for it"
            elif one.offset > read_to.get(one.partition, one.offset):
                yield f"{says}, but the trainer has read it only to offset {read_to[one.partition]}"
