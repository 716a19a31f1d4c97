"""How a policy's versions get to its workers, from the ledger: sizes, times, and how far workers differ."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from headrace.ledger.ledger import Ledger
from headrace.ledger.liveness import is_alive
from headrace.schemas.records import WorkerStatus

MEDIAN_VERSIONS = 64
"""Number of versions over which medians are taken."""


@dataclass(frozen=True, slots=True)
class WeightsFigures:
    """Figures of one policy. Medians are over the newest versions; those of workers' seconds also over workers."""

    published: int = 0
    left_out: int = 0
    """Number of unpublished versions between the oldest and the newest published version."""
    anchor_bytes: int = 0
    delta_bytes: int = 0
    """Bytes of all delta objects together."""
    ratio: float | None = None
    """Size of whole weights divided by that of a delta, median."""
    density: float | None = None
    """Share of the values that change from one published version to the next: median."""
    encode_s: float | None = None
    upload_s: float | None = None
    fetch_s: float | None = None
    verify_s: float | None = None
    apply_s: float | None = None
    pause_s: float | None = None
    """Seconds in which an engine generated nothing."""
    behind: int = 0
    """Number of versions from the oldest that a worker serves now to the newest published one."""
    skew: int = 0
    """Number of versions from the oldest to the newest that workers serve now."""
    greatest_skew: int = 0
    """Largest value of `skew` since the run began; workers report once a second."""


_RECENT = """
    SELECT CASE WHEN kind <> 'anchor' AND bytes AND full_bytes IS NOT NULL AND density IS NOT NULL
            THEN full_bytes / bytes END,
        CASE WHEN kind <> 'anchor' AND bytes AND full_bytes IS NOT NULL THEN density END, encode_s, upload_s
    FROM weights WHERE variant = ? AND publishes ORDER BY id DESC LIMIT ?
"""
_PUBLISHED = """
    SELECT count(*), max(version), min(version), total(CASE WHEN kind = 'anchor' THEN bytes END),
        total(CASE WHEN kind <> 'anchor' THEN bytes END)
    FROM weights WHERE variant = ? AND publishes
"""


def find_weights_figures(ledger: Ledger, policy: str, workers: Iterable[WorkerStatus], now_ms: int) -> WeightsFigures:
    """Return a policy's figures.

    Args:
        ledger: The ledger.
        policy: Name of the policy.
        workers: Newest status of every worker.
        now_ms: Wall time in ms since the epoch, to tell which workers are alive.
    """
    [(published, newest, oldest, anchor_bytes, delta_bytes)] = ledger.query(_PUBLISHED, policy)
    recent = ledger.query(_RECENT, policy, MEDIAN_VERSIONS)
    taken = ledger.query(
        "SELECT fetch_s, verify_s, apply_s, pause_s FROM taken WHERE policy = ? ORDER BY id DESC LIMIT ?",
        policy,
        MEDIAN_VERSIONS,
    )
    skew = ledger.query("SELECT greatest FROM skew WHERE policy = ?", policy)
    served = [one.versions[policy] for one in workers if policy in one.versions and is_alive(one, now_ms)]
    names, times = ("ratio", "density", "encode_s", "upload_s"), ("fetch_s", "verify_s", "apply_s", "pause_s")
    return WeightsFigures(
        published=published,
        left_out=max(0, newest - oldest + 1 - published) if published else 0,
        anchor_bytes=int(anchor_bytes),
        delta_bytes=int(delta_bytes),
        **{name: median_of(row[at] for row in recent if row[at] is not None) for at, name in enumerate(names)},
        **{name: median_of(row[at] for row in taken) for at, name in enumerate(times)},
        behind=max(0, newest - min(served, default=newest)) if published else 0,
        skew=_find_spread(served),
        greatest_skew=skew[0][0] if skew else 0,
    )


def median_of(values: Iterable[float]) -> float | None:
    """Return the median; None if there are no values."""
    known = list(values)
    return median(known) if known else None


def _find_spread(versions: list[int]) -> int:
    return max(versions, default=0) - min(versions, default=0)
