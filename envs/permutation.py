"""A shuffled order of 0..size-1 with random access and without stored lists."""

from __future__ import annotations

import hashlib
import struct

ROUNDS = 4


class Permutation:
    """A keyed bijection of range(size), the same on every machine and with every library version.

    Source: a balanced Feistel network of 4 rounds (Luby and Rackoff, 1988) with cycle walking (Black and Rogaway,
    2002) down to the size.
    """

    def __init__(self, size: int, key: str) -> None:
        if size < 1:
            raise ValueError(f"a permutation needs at least one element, got size {size}")
        self._size = size
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._key = hashlib.blake2b(key.encode(), digest_size=16).digest()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, position: int) -> int:
        """Return the element at a position of range(size)."""
        if not 0 <= position < self._size:
            raise IndexError(f"position {position} is outside 0..{self._size - 1}")
        value = self._feistel(position)
        while value >= self._size:
            value = self._feistel(value)
        return value

    def _feistel(self, value: int) -> int:
        mask = (1 << self._half_bits) - 1
        left, right = value >> self._half_bits, value & mask
        for number in range(ROUNDS):
            drawn = hashlib.blake2b(struct.pack("<qq", number, right), key=self._key, digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(drawn, "little") & mask)
        return left << self._half_bits | right
