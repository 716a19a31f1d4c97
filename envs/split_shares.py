"""Divides generated problems among the splits by a hash of what they ask, so that none is in two of them."""

from __future__ import annotations

from zlib import crc32

from headrace.envs.contract import Split

SHARES: dict[Split, range] = {"held_out": range(2), "warm_start": range(2, 5), "train": range(5, 8)}
"""Eighths of all problems."""


def is_of_split(split: Split, asked: str) -> bool:
    """Return whether a problem belongs to a split, by a text that says all that it asks."""
    return crc32(asked.encode()) % 8 in SHARES[split]
