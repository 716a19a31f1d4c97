"""Changed items of a block as bytes, in streams that zstd's entropy coder compresses to nearly their entropy.

A block is a stretch of a tensor's items, looked at as unsigned integers of their width. Of every item that changed
there are two numbers:

* the gap, items that did not change since the one before. Written as a sum: 255 (or 65,535, where gaps are long) as
  often as it fits, then the rest. Each part is called a digit; of two-byte digits the low and the high bytes are apart.
  Where each item changes with equal chance, gaps are geometric, their digits are independent, and nothing is lost by
  coding them apart.
* the difference of the bit patterns modulo 2^bits, folded: 0, -1, 1, -2, ... become 0, 1, 2, 3, ... A step of one unit
  in the last place is 1 or 2 however large the value is, and sign flips, NaN and -0 survive, since nothing is a number
  here. What fits is written as a code of four or eight bits, what does not goes to a stream of its own, and the highest
  code says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.infra.weights.tensors import WeightsError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Items = NDArray[np.unsignedinteger[Any]]
"""[n] items of a tensor as unsigned integers of their width."""
Positions = NDArray[np.int32]
"""[changed] indices into a block, ascending."""
FindChanges = Callable[[Items, Items], tuple[Positions, Items]]
"""`find_changes`, or another function with the same result, such as one for a GPU."""

BLOCK_ITEMS = 1 << 22
"""Items of one block: large enough for zstd, small enough for a processor's cache and for a few threads at once."""
LONG_GAP = 300
"""From this mean gap on, digits have two bytes."""
MANY_WORDS = 1 / 3
"""Share of words of eight bytes that differ from which on items are compared one by one: as of 10 % of those of bf16,
numpy finds them without a branch for each."""
LEVEL = 1
"""Level of zstd. A higher one would gain little: there are hardly any repetitions, only entropy coding helps."""
_WORD = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class Coded:
    """The streams of one block, compressed."""

    changed: int
    """Items that changed."""
    digit_bytes: int
    """1 or 2."""
    digits: int
    """Digits of all gaps."""
    code_bits: int
    """4 or 8."""
    escapes: int
    """Differences without a code."""
    streams: tuple[bytes | memoryview, ...]
    """`digit_bytes` planes of digits, codes, escapes; each a zstd frame."""


def find_changes(old: Items, new: Items) -> tuple[Positions, Items]:
    """Return where two blocks differ, and new - old there, modulo 2^bits."""
    per_word = _WORD.itemsize // old.itemsize
    whole = len(old) - len(old) % per_word
    # Eight bytes are compared at once where nearly all are equal.
    before, after = old[:whole].view(_WORD), new[:whole].view(_WORD)
    differ = before != after
    if np.count_nonzero(differ) > MANY_WORDS * len(differ):
        there = np.flatnonzero(old != new)
        return there.astype(np.int32), new.take(there) - old.take(there)
    words = np.flatnonzero(differ)
    lanes = after.take(words).view(new.dtype) - before.take(words).view(old.dtype)
    there = np.flatnonzero(lanes != 0)
    positions = (words.take(there // per_word) * per_word + there % per_word).astype(np.int32)
    differences = lanes.take(there)
    if whole < len(old):
        rest = new[whole:] - old[whole:]
        more = np.flatnonzero(rest).astype(np.int32)
        positions, differences = np.concatenate([positions, more + whole]), np.concatenate([differences, rest[more]])
    return positions, differences


def encode_block(positions: Positions, differences: Items) -> Coded:
    """Code the changes of one block."""
    digit_bytes = 1 if len(positions) == 0 or positions[-1] < LONG_GAP * len(positions) else 2
    digits = _split_digits(positions, 256**digit_bytes - 1)
    folded = _encode_zigzag(differences)
    code_bits = 4 if np.count_nonzero(folded > _find_escape_code(4)) * 16 < len(folded) else 8
    escaped = folded[folded > _find_escape_code(code_bits)]
    codes = np.minimum(folded - folded.dtype.type(1), folded.dtype.type(_find_escape_code(code_bits))).astype(np.uint8)
    if code_bits == 4:
        codes = np.append(codes, np.zeros(len(codes) % 2, np.uint8))
        codes = codes[0::2] << 4 | codes[1::2]
    planes = digits.astype(f"<u{digit_bytes}").view(np.uint8).reshape(-1, digit_bytes).T
    streams = (*planes, codes, escaped.astype(escaped.dtype.newbyteorder("<")))
    return Coded(
        changed=len(positions),
        digit_bytes=digit_bytes,
        digits=len(digits),
        code_bits=code_bits,
        escapes=len(escaped),
        streams=tuple(compress(np.ascontiguousarray(stream).data) for stream in streams),
    )


def decode_block(coded: Coded, items: int, width: int) -> tuple[Positions, Items]:
    """Return the changes of a block of `items` items of `width` bytes each.

    Raises WeightsError for streams that do not fit the numbers beside them, before memory is allocated for them.
    """
    planes = [_decompress(stream, coded.digits) for stream in coded.streams[: coded.digit_bytes]]
    digits = planes[0] if coded.digit_bytes == 1 else np.stack(planes, 1).view("<u2").reshape(-1)
    last = digits != 256**coded.digit_bytes - 1
    positions = np.cumsum(digits + last.view(np.uint8), dtype=np.int64)[last] - 1
    if len(positions) != coded.changed or (coded.digits and not last[-1]) or (coded.changed and positions[-1] >= items):
        raise WeightsError(
            f"a block of the delta is damaged: its header says {coded.changed} changes of {items} items, but its "
            f"{len(positions)} positions contradict the header"
        )
    codes = _decompress(coded.streams[-2], (coded.changed * coded.code_bits + 7) // 8)
    if coded.code_bits == 4:
        codes = np.stack([codes >> 4, codes & 15], 1).reshape(-1)[: coded.changed]
    folded = codes.astype(f"<u{width}") + np.array(1, f"<u{width}")
    escaped = np.flatnonzero(codes == _find_escape_code(coded.code_bits))
    if len(escaped) != coded.escapes:
        raise WeightsError(
            f"a block of the delta is damaged: its header says {coded.escapes} escapes, but {len(escaped)} of its "
            "codes are escapes"
        )
    folded[escaped] = _decompress(coded.streams[-1], coded.escapes * width).view(f"<u{width}")
    return positions, _decode_zigzag(folded)


def _find_escape_code(code_bits: int) -> int:
    """Return the code for a difference that is kept elsewhere; no larger folded difference has a code."""
    return (1 << code_bits) - 1


def _split_digits(positions: Positions, full: int) -> Positions:
    """Return the digits of gaps: `full` as often as it fits, then the rest."""
    gaps = np.diff(positions, prepend=np.int32(-1)) - np.int32(1)
    more = gaps // full
    if not more.any():
        return gaps
    ends = np.cumsum(more + 1)
    digits = np.full(ends[-1], full, np.int32)
    digits[ends - 1] = gaps - more * full
    return digits


def _encode_zigzag(differences: Items) -> Items:
    """Map 0, -1, 1, -2, ... to 0, 1, 2, 3, ..., modulo 2^bits: small differences of either sign become small codes."""
    kind, bits = differences.dtype, 8 * differences.itemsize
    return (differences << kind.type(1)) ^ (kind.type(0) - (differences >> kind.type(bits - 1)))


def _decode_zigzag(folded: Items) -> Items:
    kind = folded.dtype
    return (folded >> kind.type(1)) ^ (kind.type(0) - (folded & kind.type(1)))


def compress(data: bytes | memoryview) -> bytes:
    """Return one zstd frame."""
    return zstd.compress(data, LEVEL)


def decompress(frame: bytes | memoryview, most: int) -> bytes:
    """Return what one zstd frame holds. Raises WeightsError for anything else, and for more than `most` bytes.

    Memory is allocated for the size that the frame names and no more; `zstd.decompress` would also decompress any
    frames that follow.
    """
    unpacker, data = zstd.ZstdDecompressor(), b""
    try:
        size = zstd.get_frame_info(frame).decompressed_size
        if size is not None and size <= most:
            data = unpacker.decompress(frame)
    except zstd.ZstdError as error:
        raise WeightsError(f"the delta is damaged: a part of it cannot be decompressed: {error}") from error
    if size is None or size > most or not unpacker.eof or unpacker.unused_data:
        raise WeightsError(f"the delta is damaged: each part of it must be one zstd frame of at most {most} bytes")
    return data


def _decompress(stream: bytes | memoryview, expected: int) -> NDArray[np.uint8]:
    data = decompress(stream, expected)
    if len(data) != expected:
        raise WeightsError(
            f"the delta is damaged: a stream of it has {len(data)} bytes, but its header says {expected}"
        )
    return np.frombuffer(data, np.uint8)
