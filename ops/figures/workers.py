"""The newest status of every worker, and the newest decisions on their number, from the ledger."""

from __future__ import annotations

from dataclasses import replace

from headrace.ledger.ledger import Ledger
from headrace.schemas import codec
from headrace.schemas.records import ScalingDecision, WorkerStatus


def list_workers(ledger: Ledger) -> tuple[WorkerStatus, ...]:
    """Return the newest status of every worker, by name."""
    rows = ledger.query("SELECT value, seen_ms FROM worker ORDER BY name, key")
    return tuple(replace(codec.decode(value, WorkerStatus), updated_ms=seen_ms) for value, seen_ms in rows)


def list_scaling(ledger: Ledger) -> tuple[ScalingDecision, ...]:
    """Return the autoscaler's newest decision on each pool of workers, by its name."""
    rows = ledger.query(
        "SELECT value FROM scaling WHERE id IN (SELECT max(id) FROM scaling GROUP BY pool) ORDER BY pool"
    )
    return tuple(codec.decode(value, ScalingDecision) for (value,) in rows)
