"""Formats of weight updates side by side: this one, and those that others ship, each as its authors lay it out.

The others know no tensors, no base and no hashes: a set of weights is one array of 16-bit items. They are written here
as plainly, and with as much numpy, as this project's own; what zstd they use is level 1 on one thread.

* `raw`: AstraFlow's layout: 16 bytes (changed u64, bytes of an item u16, flags u16 of which bit 0 says that indices
  have 64 bits, 4 bytes unused), every index as u32, every new value.
* `raw + zstd`: the same, compressed.
* `xor + zstd`: the XOR of old and new, all of it, compressed, as slime sends it.
* `gaps + zstd`: gaps between changed items as u16 (65,535 says: so many, and no value yet) and every new value,
  compressed, as in PULSE (arXiv 2602.03839).
* `full`: every value.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.weight_sets import CHUNK, Bits, PackedWeights
from headrace.infra.weights.delta import encode_delta, read_delta
from headrace.infra.weights.delta_header import Label
from headrace.infra.weights.held import HeldWeights
from headrace.infra.weights.tensors import hash_weights

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LEVEL = 1
Encoder = Callable[[PackedWeights], bytes]
Applier = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Format:
    """How one format makes an update, and makes use of one."""

    name: str
    encoder: Callable[[PackedWeights], Encoder]
    """Given the base, with whatever is known of it beforehand: from new weights to the bytes that are sent."""
    applier: Callable[[PackedWeights], Applier]
    """Given the base, which is written to: from these bytes to new weights in it."""


# ------------------------------------------------------------------------------------------------------------ headrace


def _headrace_encoder(base: PackedWeights) -> Encoder:
    before, base_hash = base.tensors, hash_weights(base.tensors)

    def encode(new: PackedWeights) -> bytes:
        after = new.tensors
        return encode_delta(before, after, Label(), hashes=(base_hash, hash_weights(after)))

    return encode


def _headrace_applier(target: PackedWeights) -> Applier:
    held = HeldWeights(target.tensors, copy=False)

    def apply(data: bytes) -> None:
        held.apply(read_delta(data))

    return apply


# ----------------------------------------------------------------------------------------------------------------- raw

_RAW_HEADER = struct.Struct("<QHH4x")
_WIDE_INDICES = 1
Indices = NDArray[np.int64]


def changed_chunks(old: Bits, new: Bits) -> Iterator[Indices]:
    """Yield where two sets differ, some million items at a time."""
    for at in range(0, len(old), CHUNK):
        yield np.flatnonzero(old[at : at + CHUNK] != new[at : at + CHUNK]) + at


def encode_raw(old: Bits, new: Bits) -> bytes:
    wide = len(old) > 1 << 32
    found = [chunk.astype("<u8" if wide else "<u4") for chunk in changed_chunks(old, new)]
    values = [new[chunk].astype("<u2") for chunk in found]
    header = _RAW_HEADER.pack(sum(map(len, found)), new.itemsize, _WIDE_INDICES if wide else 0)
    return b"".join([header, *(array.data for array in found), *(array.data for array in values)])


def apply_raw(target: Bits, data: bytes | memoryview) -> None:
    count, _, flags = _RAW_HEADER.unpack_from(data)
    kind = np.dtype("<u8" if flags & _WIDE_INDICES else "<u4")
    indices = np.frombuffer(data, kind, count, _RAW_HEADER.size)
    target[indices] = np.frombuffer(data, "<u2", count, _RAW_HEADER.size + indices.nbytes)


def encode_raw_zstd(old: Bits, new: Bits) -> bytes:
    return zstd.compress(encode_raw(old, new), LEVEL)


def apply_raw_zstd(target: Bits, data: bytes) -> None:
    apply_raw(target, zstd.decompress(data))


# ----------------------------------------------------------------------------------------------------------------- xor


def encode_xor_zstd(old: Bits, new: Bits) -> bytes:
    packer = zstd.ZstdCompressor(LEVEL)
    pieces = [packer.compress((old[at : at + CHUNK] ^ new[at : at + CHUNK]).data) for at in range(0, len(old), CHUNK)]
    return b"".join([*pieces, packer.flush()])


def apply_xor_zstd(target: Bits, data: bytes) -> None:
    unpacker, whole, at = zstd.ZstdDecompressor(), target.view(np.uint8), 0
    while not unpacker.eof:
        piece = np.frombuffer(unpacker.decompress(data, CHUNK), np.uint8)
        whole[at : at + len(piece)] ^= piece
        at, data = at + len(piece), b""


# ---------------------------------------------------------------------------------------------------------------- gaps

_GAPS_HEADER = struct.Struct("<QQ")
_NO_VALUE = (1 << 16) - 1


def encode_gaps_zstd(old: Bits, new: Bits) -> bytes:
    gaps, values, last = [], [], -1
    for there in changed_chunks(old, new):
        if len(there):
            gaps.append(_gaps(np.diff(there, prepend=last) - 1))
            values.append(new[there].astype("<u2"))
            last = int(there[-1])
    header = _GAPS_HEADER.pack(sum(map(len, gaps)), sum(map(len, values)))
    return zstd.compress(b"".join([header, *(array.data for array in (*gaps, *values))]), LEVEL)


def _gaps(lengths: Indices) -> NDArray[np.uint16]:
    more = lengths // _NO_VALUE
    ends = np.cumsum(more + 1)
    found = np.full(int(ends[-1]), _NO_VALUE, "<u2")
    found[ends - 1] = lengths - more * _NO_VALUE
    return found


def apply_gaps_zstd(target: Bits, data: bytes) -> None:
    whole = zstd.decompress(data)
    count, changed = _GAPS_HEADER.unpack_from(whole)
    gaps = np.frombuffer(whole, "<u2", count, _GAPS_HEADER.size)
    values = np.frombuffer(whole, "<u2", changed, _GAPS_HEADER.size + gaps.nbytes)
    position, used = -1, 0
    for at in range(0, count, CHUNK):
        piece = gaps[at : at + CHUNK]
        valued = piece != _NO_VALUE
        positions = np.cumsum(piece + valued.astype(np.int64)) + position
        there = positions[valued]
        target[there] = values[used : used + len(there)]
        position, used = int(positions[-1]), used + len(there)


# ---------------------------------------------------------------------------------------------------------- all of them


def _of_arrays(name: str, encode: Callable[[Bits, Bits], bytes], apply: Callable[[Bits, bytes], None]) -> Format:
    def encoder(base: PackedWeights) -> Encoder:
        return lambda new: encode(base.items, new.items)

    return Format(name, encoder, lambda target: partial(apply, target.items))


def _encode_full(_: Bits, new: Bits) -> bytes:
    return new.tobytes()


def _apply_full(target: Bits, data: bytes) -> None:
    target[:] = np.frombuffer(data, np.uint16)


HEADRACE = Format("headrace", _headrace_encoder, _headrace_applier)
FORMATS = (
    HEADRACE,
    _of_arrays("gaps + zstd", encode_gaps_zstd, apply_gaps_zstd),
    _of_arrays("xor + zstd", encode_xor_zstd, apply_xor_zstd),
    _of_arrays("raw + zstd", encode_raw_zstd, apply_raw_zstd),
    _of_arrays("raw", encode_raw, apply_raw),
    _of_arrays("full", _encode_full, _apply_full),
)
