"""Records that nobody could read: each needs a dead letter that names its place; and letters of no number. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.infra.kafka.topic_reader import Place
from headrace.ops.audit.problems import MOST_LISTED, Problem, Problems

PAGE_BITS = 12
UNREAD, LETTER = 1, 2
SENT_BACK = 0x80
MOST_REASONS, REASON_LENGTH = SENT_BACK - 1, 40
"""Letters of further reasons, and of longer ones, count as OTHER."""
OTHER = "other"


class Unread:
    """One byte for every offset, in pages that exist only where something could not be read."""

    def __init__(self) -> None:
        self._pages: dict[tuple[str, int, int], bytearray] = {}
        self._whys: dict[tuple[str, int, int], str] = {}

    def record(self, topic: str, partition: int, offset: int, why: str) -> None:
        """Take in a record that could not be read."""
        self._mark(topic, partition, offset, UNREAD)
        if len(self._whys) < MOST_LISTED:
            self._whys[topic, partition, offset] = why

    def letter(self, topic: str, partition: int, offset: int) -> None:
        """Take in a dead letter, by the place that it is about."""
        self._mark(topic, partition, offset, LETTER)

    def _mark(self, topic: str, partition: int, offset: int, bit: int) -> None:
        if offset < 0:
            return
        page = self._pages.setdefault((topic, partition, offset >> PAGE_BITS), bytearray(1 << PAGE_BITS))
        page[offset & ((1 << PAGE_BITS) - 1)] |= bit

    def problems(self, positions: Mapping[Place, int]) -> Problems:
        """Return what could not be read and has no letter.

        Args:
            positions: How far the readers of a topic are; what lies behind that may still become a letter.
        """
        found = Problems()
        for (topic, partition, index), page in sorted(self._pages.items()):
            at = page.find(UNREAD)
            while at >= 0:
                offset = (index << PAGE_BITS) + at
                end = positions.get((topic, partition))
                if end is None or offset < end:
                    why = self._whys.get((topic, partition, offset), "it cannot be read")
                    what = f"{topic}[{partition}]@{offset} cannot be used, and no dead letter says so: {why}"
                    found.add([Problem(what)], 1)
                at = page.find(UNREAD, at + 1)
        return found


class Unnumbered:
    """Dead letters that conclude no number, so that no count of numbers tells of them. One byte for every letter."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._codes: dict[str, int] = {}

    def letter(self, offset: int, reason: str) -> None:
        """Take in a letter that concludes no number, by its offset among the letters."""
        is_known = reason in self._codes or len(self._codes) < MOST_REASONS - 1
        reason = reason if is_known and 0 < len(reason) <= REASON_LENGTH else OTHER
        self._mark(offset, self._codes.setdefault(reason, len(self._codes) + 1))

    def sent_back(self, offset: int) -> None:
        """Take in the word that a letter's message was sent back, whatever letter it is."""
        self._mark(offset, SENT_BACK)

    def _mark(self, offset: int, bits: int) -> None:
        if offset >= len(self._bytes):
            self._bytes.extend(bytes(offset + 1 - len(self._bytes)))
        self._bytes[offset] |= bits

    def by_reason(self) -> dict[str, int]:
        """Count the letters that were not sent back."""
        found = {reason: self._bytes.count(code) for reason, code in sorted(self._codes.items())}
        return {reason: count for reason, count in found.items() if count}
