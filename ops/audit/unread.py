"""Unreadable records, each of which needs a dead letter. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.infra.kafka.topic_reader import PartitionId
from headrace.ops.audit.problems import MOST_LISTED, AuditProblem, Problems

UNREAD_PAGE_BITS = 12
UNREAD, DEAD_LETTER, VOID = 1, 2, 4


class Unread:
    """Offsets of unreadable records: one byte for every offset, in pages that exist only near such records."""

    def __init__(self) -> None:
        self._pages: dict[tuple[str, int, int], bytearray] = {}
        self._whys: dict[tuple[str, int, int], str] = {}

    def record(self, topic: str, partition: int, offset: int, why: str) -> None:
        """Take in a record that could not be read."""
        self._mark(topic, partition, offset, UNREAD)
        if len(self._whys) < MOST_LISTED:
            self._whys[topic, partition, offset] = why

    def fold_dead_letter(self, topic: str, partition: int, offset: int, *, is_void: bool = False) -> None:
        """Take in a dead letter, by the record that it is about. With `is_void` it concludes no number.

        That is so if its number was never issued, or the curator could not read its headers.
        """
        self._mark(topic, partition, offset, DEAD_LETTER | (VOID if is_void else 0))

    def is_refused(self, topic: str, partition: int, offset: int) -> bool:
        """Return whether a record has a dead letter that concludes no number."""
        page = self._pages.get((topic, partition, offset >> UNREAD_PAGE_BITS))
        return page is not None and bool(page[offset & ((1 << UNREAD_PAGE_BITS) - 1)] & VOID)

    def _mark(self, topic: str, partition: int, offset: int, bit: int) -> None:
        if offset < 0:
            return
        page = self._pages.setdefault((topic, partition, offset >> UNREAD_PAGE_BITS), bytearray(1 << UNREAD_PAGE_BITS))
        page[offset & ((1 << UNREAD_PAGE_BITS) - 1)] |= bit

    def problems(self, positions: Mapping[PartitionId, int]) -> Problems:
        """Return the unreadable records without a dead letter.

        Args:
            positions: Offsets that the readers have reached; records after them may still become dead letters.
        """
        found = Problems()
        for (topic, partition, index), page in sorted(self._pages.items()):
            at = page.find(UNREAD)
            while at >= 0:
                offset = (index << UNREAD_PAGE_BITS) + at
                end = positions.get((topic, partition))
                if end is None or offset < end:
                    why = self._whys.get((topic, partition, offset), "it cannot be read")
                    what = f"{topic}[{partition}]@{offset} cannot be used, but has no dead letter: {why}"
                    found.add([AuditProblem(what)], 1)
                at = page.find(UNREAD, at + 1)
        return found
