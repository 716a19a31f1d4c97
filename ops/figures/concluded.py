"""The newest groups of each policy, and why some of them were discarded. No I/O, no clock."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict

from headrace.schemas.records import BatchTrained, DeadLetter, Outcome
from headrace.schemas.topics import is_eval

RECENT_GROUPS = 256
"""Number of the newest groups of a policy that are kept."""


class ConcludedFold:
    """Keeps the newest groups of each policy variant that were trained, discarded or dead, in any order."""

    def __init__(self) -> None:
        self._newest: defaultdict[str, list[tuple[int, str]]] = defaultdict(list)
        """(ms since the epoch, reason of the discard, empty for a trained group): heaps, the oldest first."""
        self.curated_ms: defaultdict[str, int] = defaultdict(int)
        """Time of a curator's newest outcome."""

    def fold_record(self, variant: str, record: Outcome | BatchTrained | DeadLetter, at_ms: int) -> None:
        """Take in a record that was written at that time."""
        if isinstance(record, BatchTrained):
            for _ in record.groups:
                self._add(variant, at_ms, "")
        elif isinstance(record, DeadLetter):
            self._add(variant, at_ms, record.reason)
        elif record.level == "group" and not record.use and not is_eval(record.stream):
            if record.component == "curate":
                self.curated_ms[variant] = max(at_ms, self.curated_ms[variant])
            if record.verdict != "kept":
                self._add(variant, at_ms, record.reason or record.verdict)

    def _add(self, variant: str, at_ms: int, why: str) -> None:
        newest = self._newest[variant]
        if len(newest) < RECENT_GROUPS:
            heapq.heappush(newest, (at_ms, why))
        elif at_ms > newest[0][0]:
            heapq.heapreplace(newest, (at_ms, why))

    def count_since(self, variant: str, at_ms: int) -> tuple[int, Counter[str]]:
        """Return how many of the newest groups concluded after that time, and the discarded of them by reason."""
        found = [why for when, why in self._newest[variant] if when > at_ms]
        return len(found), Counter(why for why in found if why)

    def begin_ms(self, variant: str) -> int:
        """Return when the oldest of the kept groups concluded."""
        return self._newest[variant][0][0]
