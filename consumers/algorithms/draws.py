"""Random numbers that depend only on a seed and their index."""

from __future__ import annotations

import hashlib

from numpy.random import Philox

BLOCK = 256
_COUNTERS = BLOCK // 4
"""Philox gives four words for each count."""


class PhiloxDraws:
    """Numbers in [0, 1), 53 bits each: Philox4x64 keyed by `seed` and the name of a stream of draws.

    `count`, the number of draws, is the whole state. Source: Salmon et al., Parallel random numbers (SC 2011).
    """

    def __init__(self, seed: int, stream: str) -> None:
        self._key = int.from_bytes(hashlib.blake2b(f"{seed}/{stream}".encode(), digest_size=16).digest(), "little")
        self._count = 0
        self._block: list[int] = []

    @property
    def count(self) -> int:
        """The number of draws; it may be set."""
        return self._count

    @count.setter
    def count(self, count: int) -> None:
        self._count = count
        self._block = []

    def next(self) -> float:
        """Draw one number."""
        block, index = divmod(self._count, BLOCK)
        if not index or not self._block:
            self._block = Philox(key=self._key, counter=block * _COUNTERS).random_raw(BLOCK).tolist()
        self._count += 1
        return (self._block[index] >> 11) * 2.0**-53
