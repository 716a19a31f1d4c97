"""Random numbers whose whole state is one count."""

from __future__ import annotations

import hashlib


class HashedDraws:
    """Uniform numbers strictly between 0 and 1; the n-th is a hash of seed, name and n, the same on every machine."""

    def __init__(self, seed: int, name: str) -> None:
        self._key = hashlib.blake2b(f"{name}|{seed}".encode(), digest_size=16).digest()
        self.count = 0
        """How many numbers were drawn."""

    def next(self) -> float:
        """Return the next number."""
        digest = hashlib.blake2b(self.count.to_bytes(8, "little"), key=self._key, digest_size=8).digest()
        self.count += 1
        return ((int.from_bytes(digest, "little") >> 12) + 0.5) / 2**52
