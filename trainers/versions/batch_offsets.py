"""Finds the offset on `batches` from which a successor must read. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.schemas.records import BatchTrained
from headrace.trainers.health import HEALTH_LOOK_BACK


@dataclass(slots=True)
class _Section:
    """The record of a version, and the records between it and the last version."""

    begin: int
    """No record of the section is before this offset."""
    concluded: dict[int, int] = field(default_factory=dict)
    """Last offset concluded by the records, by partition of the curated topic."""


@dataclass(slots=True)
class BatchOffsets:
    """Remembers what the records on `batches` conclude, as far back as it may be needed.

    A successor treats a curated record as open if it is at or after its checkpoint's position and no record that the
    successor has read concludes it. It also needs the metrics of LOOK_BACK versions.
    """

    begin: int = 0
    """Lowest possible offset of the first record."""
    _sections: deque[_Section] = field(default_factory=deque)
    _newest: _Section = field(init=False)
    """Section of the version that comes next."""

    def __post_init__(self) -> None:
        self._newest = _Section(self.begin)

    def note_concluded(self, record: BatchTrained) -> None:
        """Take in the groups that a record, read or being written, concludes."""
        evicted = (eviction.group for eviction in record.evictions if eviction.group)
        last = self._newest.concluded
        for use in (*record.groups, *evicted):
            last[use.partition] = max(last.get(use.partition, -1), use.offset)

    def note_version_offset(self, offset: int) -> None:
        """Take in the offset of the last version's record."""
        self._sections.append(self._newest)
        self._newest = _Section(offset + 1)

    def find_first_needed(self, positions: Mapping[int, int]) -> int:
        """Return the offset to read from, and forget everything before it; positions must never decrease."""
        while len(self._sections) > HEALTH_LOOK_BACK and _is_before(self._sections[0], positions):
            self._sections.popleft()
        return (self._sections[0] if self._sections else self._newest).begin


def _is_before(section: _Section, positions: Mapping[int, int]) -> bool:
    return all(offset < positions.get(partition, 0) for partition, offset in section.concluded.items())
