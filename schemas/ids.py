"""Seeds that follow from names alone, the same on every machine and for every attempt, and the clock of all records."""

from __future__ import annotations

import hashlib
import time


def now_ms() -> int:
    """Return wall time in ms since the epoch, as records carry it."""
    return time.time_ns() // 1_000_000


def derived_seed(*parts: object) -> int:
    """Return a seed in [0, 2**63) that follows from its parts alone, on every machine."""
    return _seed("\0".join(map(str, parts)))


def task_seed(seed: int, stream: str, number: int) -> int:
    """Return the seed of a task's sampling: a stable hash in [0, 2**63), the same for every attempt."""
    return _seed(f"{seed}|{stream}|{number}")


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
