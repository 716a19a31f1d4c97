"""Finds distinct problems, and gives them a split and an order, by hashes of their texts alone."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Digests = npt.NDArray[np.uint64]
"""uint64[N, 2]: 16 bytes of BLAKE2b per row, as two numbers."""
Numbers = npt.NDArray[np.int64]


DIGESTS_AT_ONCE = 1 << 16


def hash_text(text: str) -> bytes:
    """Return the 16 hash bytes that identify a problem."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def stack_digests(digests: bytes | bytearray) -> Digests:
    """Return the array of concatenated digests."""
    return np.frombuffer(bytes(digests), ">u8").astype(np.uint64).reshape(-1, 2)


def find_distinct(digests: Digests) -> tuple[Numbers, Numbers, Numbers]:
    """Return the first row of every digest, in the order of digests; the duplicate rows; and their first rows.

    All are row numbers, int64[D], int64[R] and int64[R].
    """
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: among equal digests the first row comes first
    ordered = digests[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    firsts = order[is_first]
    owners = firsts[np.cumsum(is_first) - 1] if len(order) else firsts
    return firsts, order[~is_first], owners[~is_first]


def compute_shares(digests: Digests) -> npt.NDArray[np.float64]:
    """Return float64[N]: each digest's position in [0, 1), from its last 4 bytes."""
    return (digests[:, 1] & np.uint64(0xFFFFFFFF)).astype(np.float64) / 2**32


def order_by_seed(digests: Digests, seed: int) -> Numbers:
    """Return int64[N]: the indices of the digests in a seed's order, which does not depend on their input order."""
    hashed = bytearray()
    for begin in range(0, len(digests), DIGESTS_AT_ONCE):  # Python's integers take four times as much
        for first, last in digests[begin : begin + DIGESTS_AT_ONCE].tolist():
            hashed += hash_text(f"{seed} {first:016x}{last:016x}")
    keys = stack_digests(hashed)
    return np.lexsort((keys[:, 1], keys[:, 0]))
