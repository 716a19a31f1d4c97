"""Unreadable records, each of which needs a dead letter, and dead letters without a number. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.infra.kafka.topic_reader import PartitionId
from headrace.ops.audit.problems import MOST_LISTED, AuditProblem, Problems

UNREAD_PAGE_BITS = 12
UNREAD, DEAD_LETTER, VOID = 1, 2, 4
SENT_BACK = 0x80
MOST_REASONS, REASON_LENGTH = SENT_BACK - 1, 40
"""Largest number of reasons, and length of a reason; other dead letters count as OTHER_REASON."""
OTHER_REASON = "other"


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

    def has_dead_letter(self, topic: str, partition: int, offset: int) -> bool:
        """Return whether a record has a dead letter."""
        page = self._pages.get((topic, partition, offset >> UNREAD_PAGE_BITS))
        return page is not None and bool(page[offset & ((1 << UNREAD_PAGE_BITS) - 1)] & DEAD_LETTER)

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


class Unnumbered:
    """Dead letters that conclude no number, and so are in no other count. One byte for every dead letter."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._codes: dict[str, int] = {}

    def fold_dead_letter(self, offset: int, reason: str) -> None:
        """Take in a dead letter that concludes no number, by its offset among the dead letters."""
        is_known = reason in self._codes or len(self._codes) < MOST_REASONS - 1
        reason = reason if is_known and 0 < len(reason) <= REASON_LENGTH else OTHER_REASON
        self._mark(offset, self._codes.setdefault(reason, len(self._codes) + 1))

    def fold_redriven(self, offset: int) -> None:
        """Record that the message of a dead letter was sent back."""
        self._mark(offset, SENT_BACK)

    def _mark(self, offset: int, bits: int) -> None:
        if offset >= len(self._bytes):
            self._bytes.extend(bytes(offset + 1 - len(self._bytes)))
        self._bytes[offset] |= bits

    def count_by_reason(self) -> dict[str, int]:
        """Count the dead letters that were not sent back."""
        found = {reason: self._bytes.count(code) for reason, code in sorted(self._codes.items())}
        return {reason: count for reason, count in found.items() if count}
