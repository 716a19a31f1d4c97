"""Records that nobody could read: each of them needs a dead letter that names its place. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from consumers.audit.problems import MOST_LISTED, Problem, Problems
from infra.topic_reader import Place

PAGE_BITS = 12
UNREAD, LETTER = 1, 2


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
