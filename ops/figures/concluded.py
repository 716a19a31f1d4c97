"""The newest groups of each policy, and why some of them were discarded, from the ledger."""

from __future__ import annotations

from collections import Counter

from headrace.infra.kafka.dead_letters import REDRIVEN
from headrace.ledger.ledger import Ledger

RECENT_GROUPS = 256
"""Number of the newest groups of a policy that are looked at."""
_DISCARDED = """
    SELECT at_ms, CASE WHEN reason <> '' THEN reason ELSE verdict END FROM outcome
    WHERE variant = ? AND stream = ? AND level = 'group' AND use = 0 AND verdict <> 'kept'
    ORDER BY at_ms DESC LIMIT ?
"""


class Concluded:
    """The newest groups that were trained, discarded or dead, of each policy or shadow."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._newest: dict[str, list[tuple[int, str]]] = {}

    def _find_newest(self, variant: str) -> list[tuple[int, str]]:
        """Return (ms since the epoch, reason of the discard, empty for a trained group), the newest first."""
        if variant not in self._newest:
            query, found = self._ledger.query, list[tuple[int, str]]()
            for (stream,) in query("SELECT DISTINCT stream FROM decided WHERE variant = ?", variant):
                found += query(_DISCARDED, variant, stream, RECENT_GROUPS)
            for at_ms, groups in query(
                "SELECT at_ms, n_groups FROM batch WHERE variant = ? AND n_groups ORDER BY at_ms DESC LIMIT ?",
                variant,
                RECENT_GROUPS,
            ):
                found += [(at_ms, "")] * min(groups, RECENT_GROUPS)
            found += query(
                "SELECT at_ms, reason FROM dead_letter WHERE policy = ? AND reason <> ? ORDER BY at_ms DESC LIMIT ?",
                variant,
                REDRIVEN,
                RECENT_GROUPS,
            )
            self._newest[variant] = sorted(found, key=lambda one: -one[0])[:RECENT_GROUPS]
        return self._newest[variant]

    def count_since(self, variant: str, at_ms: int) -> tuple[int, Counter[str]]:
        """Return how many of the newest groups concluded after that time, and the discarded of them by reason."""
        found = [why for when, why in self._find_newest(variant) if when > at_ms]
        return len(found), Counter(why for why in found if why)

    def begin_ms(self, variant: str) -> int:
        """Return when the oldest of the newest groups concluded."""
        return self._find_newest(variant)[-1][0]

    def find_curated_ms(self, variant: str) -> int:
        """Return the time of a curator's newest outcome; 0 before the first."""
        [(at_ms,)] = self._ledger.query("SELECT max(curated_ms) FROM decided WHERE variant = ?", variant)
        return at_ms or 0
