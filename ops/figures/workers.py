"""The newest status of every worker, from the ledger."""

from __future__ import annotations

from dataclasses import replace

from headrace.ledger.ledger import Ledger
from headrace.schemas import codec
from headrace.schemas.records import WorkerStatus


def list_workers(ledger: Ledger) -> tuple[WorkerStatus, ...]:
    """Return the newest status of every worker, by name."""
    rows = ledger.query("SELECT value, seen_ms FROM worker ORDER BY name, key")
    return tuple(replace(codec.decode(value, WorkerStatus), updated_ms=seen_ms) for value, seen_ms in rows)
