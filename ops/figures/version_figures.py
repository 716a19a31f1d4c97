"""Versions of policies and shadows, from the ledger: the newest, when each was made, and its off-policy gap."""

from __future__ import annotations

import json
from collections.abc import Iterable

from headrace.ledger.ledger import Ledger
from headrace.ops.lineage.own_metrics import select_answer_metrics


class Versions:
    """The versions by policy variant, as they are in the ledger now.

    Args:
        ledger: The ledger.
        policies: The policies; for others, the publication of version 0 does not tell when it was made.
    """

    def __init__(self, ledger: Ledger, policies: Iterable[str]) -> None:
        self._ledger, self._policies = ledger, frozenset(policies)
        rows = ledger.query(
            "SELECT variant, max(version) FROM (SELECT variant, version FROM batch"
            " UNION ALL SELECT variant, version FROM weights WHERE publishes) GROUP BY variant"
        )
        self.newest: dict[str, int] = dict(rows)

    def find_made_ms(self, variant: str) -> dict[int, int]:
        """Return version to the time when it was made; for version 0, when it was published."""
        first = []
        if variant in self._policies:
            first = self._ledger.query(
                "SELECT version, created_ms FROM weights WHERE variant = ? AND version = 0 AND publishes"
                " ORDER BY id DESC LIMIT 1",
                variant,
            )
        made = self._ledger.query(
            "SELECT version, created_ms FROM batch WHERE variant = ? AND version > 0 ORDER BY id", variant
        )
        return dict([*first, *made])

    def find_answers(self, variant: str) -> dict[str, float] | None:
        """Return the metrics of the newest version about its trajectories; None before the first batch."""
        rows = self._ledger.query(
            "SELECT metrics FROM batch WHERE variant = ? AND version = ? AND version > 0 ORDER BY id DESC LIMIT 1",
            variant,
            self.newest.get(variant, -1),
        )
        return select_answer_metrics(json.loads(rows[0][0])) if rows else None

    def find_gaps(self, variant: str) -> tuple[tuple[int, float], ...]:
        """Return (version, off-policy gap) of each version whose gap is known."""
        rows = self._ledger.query(
            "SELECT version, off_policy_gap FROM batch"
            " WHERE variant = ? AND version > 0 AND off_policy_gap IS NOT NULL ORDER BY id",
            variant,
        )
        return tuple(sorted(dict(rows).items()))
