"""Which workers are alive, by the times of their newest statuses. No I/O, no clock."""

from __future__ import annotations

from headrace.schemas.records import WorkerStatus

FRESH_MS = 15_000
"""A worker without a heartbeat for that long is gone."""


def is_alive(worker: WorkerStatus, now_ms: int) -> bool:
    """Return whether a worker runs, by its newest status. A status from the future means a clock that was set back."""
    return worker.state != "stopped" and is_fresh(worker.updated_ms, now_ms)


def is_fresh(at_ms: int, now_ms: int) -> bool:
    """Return whether two times differ by less than the time between two heartbeats."""
    return abs(now_ms - at_ms) < FRESH_MS
