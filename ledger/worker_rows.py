"""Writes the statuses of workers into the ledger: the newest of each, and what they tell about versions."""

from __future__ import annotations

import sqlite3

from headrace.infra.kafka.clients import Message
from headrace.ledger.liveness import FRESH_MS
from headrace.schemas.records import WorkerStatus

_WIDEN = f"""
    INSERT INTO skew
    SELECT policy, max(version) - min(version) FROM served JOIN worker ON worker.name = served.worker
    WHERE state <> 'stopped' AND abs(seen_ms - ?) < {FRESH_MS} GROUP BY policy
    ON CONFLICT DO UPDATE SET greatest = max(greatest, excluded.greatest)
"""


def write_status(db: sqlite3.Connection, message: Message, status: WorkerStatus, arrived_ms: int) -> None:
    """Write a status; its time is that of its arrival if that is known."""
    seen_ms = arrived_ms or status.updated_ms
    db.execute(
        "INSERT OR REPLACE INTO worker VALUES (?, ?, ?, ?, ?)",
        (message.key, status.worker, status.state, seen_ms, message.value),
    )
    db.execute(
        "INSERT OR REPLACE INTO worker_life VALUES (?, ?, ?, ?)",
        (status.worker, status.started_ms, status.tokens, status.wasted_tokens),
    )
    for one in status.taken:
        db.execute(
            "INSERT INTO taken (policy, worker, version, fetch_s, verify_s, apply_s, pause_s)"
            " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET fetch_s = excluded.fetch_s,"
            " verify_s = excluded.verify_s, apply_s = excluded.apply_s, pause_s = excluded.pause_s",
            (one.policy, status.worker, one.version, one.fetch_s, one.verify_s, one.apply_s, one.pause_s),
        )
    served = dict(db.execute("SELECT policy, version FROM served WHERE worker = ?", (status.worker,)))
    if served != status.versions:
        db.execute("DELETE FROM served WHERE worker = ?", (status.worker,))
        found = [(status.worker, policy, version) for policy, version in status.versions.items()]
        db.executemany("INSERT INTO served VALUES (?, ?, ?)", found)
        db.execute(_WIDEN, (seen_ms,))


def forget_worker(db: sqlite3.Connection, key: bytes) -> None:
    """Remove a worker's status."""
    db.execute("DELETE FROM served WHERE worker IN (SELECT name FROM worker WHERE key = ?)", (key,))
    db.execute("DELETE FROM worker WHERE key = ?", (key,))
