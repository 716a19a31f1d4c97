"""Avro's binary encoding, straight between records and bytes: the usual case, in half the time that plain dicts take.

Usual is a record that fits its schema and bytes that our writer made. For all else `Unusual` is raised and `codec` goes
the long way, through `schemas.avro` and fastavro, which decides whether it is right and says what is wrong. So nothing
here explains, and what the two ways accept must be the same (`tests/unit/test_binary.py`).

Source of the encoding: Avro 1.11 specification, "Binary encoding".
"""

from __future__ import annotations

import dataclasses
import struct
import typing
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import numpy as np

from schemas.avro import Dtype

Put = Callable[[bytes], None]
Write = Callable[[Any, Put], None]
"""Puts the bytes of one value."""
Read = Callable[[bytes, int], tuple[Any, int]]
"""Returns the value that begins at an offset, and the offset behind it."""

DOUBLE = struct.Struct("<d")
LONGEST = 1 << 63
ONE_BYTE = 128
NO_ZERO = object()
"""Stands for: a zero byte does not end this type's value."""


class Unusual(Exception):
    """Not for this module."""


MISFITS = (Unusual, IndexError, ValueError, struct.error)
"""What a `Write` or `Read` raises where it cannot serve: our own, bytes at their end, text, tensors, doubles."""


def _varint(value: int) -> bytes:
    """Return Avro's zigzag variable-length form of a long."""
    if not -LONGEST <= value < LONGEST:
        raise Unusual
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest >= ONE_BYTE:
        out.append(rest & 127 | ONE_BYTE)
        rest >>= 7
    out.append(rest)
    return bytes(out)


SMALL = {value: _varint(value) for value in range(-64, 8192)}
"""Most longs and lengths."""
NONE, SOME, FALSE, TRUE = SMALL[0], SMALL[1], b"\0", b"\1"


# -------------------------------------------------------------------------------------------------------------- writing


def writer(record: type) -> Write:
    """Return the function that writes records of this class. It raises one of MISFITS for any that does not fit."""
    hints = typing.get_type_hints(record, include_extras=True)
    names = [f.name for f in dataclasses.fields(record)]
    values_of = attrgetter(*names)
    writes = [_write_of(hints[name]) for name in names]

    def write(value: Any, put: Put) -> None:
        if type(value) is not record:
            raise Unusual
        for write_field, field in zip(writes, values_of(value), strict=True):
            write_field(field, put)

    return write


def _write_of(hint: Any) -> Write:
    if hint in WRITES:
        return WRITES[hint]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return writer(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _write_tensor(arguments[1])
    if origin is tuple:
        return _write_items(_write_of(arguments[0]))
    if origin is dict:
        return _write_map(_write_of(arguments[1]))
    return _write_optional(_write_of(arguments[0]))


def _write_str(value: Any, put: Put) -> None:
    if type(value) is not str:
        raise Unusual
    data = value.encode()
    put(SMALL.get(len(data)) or _varint(len(data)))
    put(data)


def _write_int(value: Any, put: Put) -> None:
    if type(value) is not int:
        raise Unusual
    put(SMALL.get(value) or _varint(value))


def _write_float(value: Any, put: Put) -> None:
    if type(value) is not float:
        raise Unusual
    put(DOUBLE.pack(value))


def _write_bool(value: Any, put: Put) -> None:
    if type(value) is not bool:
        raise Unusual
    put(TRUE if value else FALSE)


def _write_bytes(value: Any, put: Put) -> None:
    if type(value) is not bytes:
        raise Unusual
    put(_varint(len(value)))
    put(value)


WRITES: dict[Any, Write] = {
    str: _write_str,
    int: _write_int,
    float: _write_float,
    bool: _write_bool,
    bytes: _write_bytes,
}


def _write_tensor(dtype: Dtype) -> Write:
    wire = dtype.little_endian

    def write(value: Any, put: Put) -> None:
        if not isinstance(value, np.ndarray) or value.dtype != wire or value.ndim != 1:
            raise Unusual
        put(SMALL.get(value.nbytes) or _varint(value.nbytes))
        put(value.tobytes())

    return write


def _write_items(write_one: Write) -> Write:
    def write(value: Any, put: Put) -> None:
        if not isinstance(value, tuple):
            raise Unusual
        if value:
            put(_varint(len(value)))
            for one in value:
                write_one(one, put)
        put(NONE)

    return write


def _write_map(write_one: Write) -> Write:
    def write(value: Any, put: Put) -> None:
        if not isinstance(value, dict):
            raise Unusual
        if value:
            put(_varint(len(value)))
            for key, one in value.items():
                _write_str(key, put)
                write_one(one, put)
        put(NONE)

    return write


def _write_optional(write_one: Write) -> Write:
    def write(value: Any, put: Put) -> None:
        if value is None:
            put(NONE)
        else:
            put(SOME)
            write_one(value, put)

    return write


# -------------------------------------------------------------------------------------------------------------- reading


def reader(record: type) -> Read:
    """Return the function that reads records of this class; tensors become read-only arrays.

    On bytes that are not usual it raises one of MISFITS, or says that the record ends where the bytes do not.
    """
    hints = typing.get_type_hints(record, include_extras=True)
    columns = [_read_of(hints[f.name]) for f in dataclasses.fields(record)]

    def read(data: bytes, at: int) -> tuple[Any, int]:
        values = []
        for read_field, zero in columns:
            if zero is not NO_ZERO and not data[at]:
                values.append(zero)
                at += 1
            else:
                value, at = read_field(data, at)
                values.append(value)
        return record(*values), at

    return read


def _read_of(hint: Any) -> tuple[Read, Any]:
    """Return how a type is read, and which of its values is a single zero byte."""
    if hint in READS:
        return READS[hint]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return reader(hint), NO_ZERO
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _read_tensor(arguments[1]), NO_ZERO
    if origin is tuple:
        return _read_items(_read_of(arguments[0])[0]), ()
    if origin is dict:
        return _read_map(_read_of(arguments[1])[0]), NO_ZERO
    read_one = _read_of(arguments[0])[0]
    return _read_optional(_remembering(read_one) if dataclasses.is_dataclass(arguments[0]) else read_one), None


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < ONE_BYTE:
        return (byte >> 1) ^ -(byte & 1), at + 1
    rest, shift = byte & 127, 7
    while (byte := data[at := at + 1]) >= ONE_BYTE and rest < LONGEST:
        rest |= (byte & 127) << shift
        shift += 7
    rest |= byte << shift
    if rest >= 2 * LONGEST:
        raise Unusual
    return (rest >> 1) ^ -(rest & 1), at + 1


def _begin_and_end(data: bytes, at: int) -> tuple[int, int]:
    """Return where the bytes lie whose length stands at an offset."""
    length = data[at]
    if length < ONE_BYTE and not length & 1:
        return at + 1, at + 1 + (length >> 1)
    length, at = _read_long(data, at)
    if length < 0:
        raise Unusual
    return at, at + length


def _read_str(data: bytes, at: int) -> tuple[str, int]:
    length = data[at]
    if length < ONE_BYTE and not length & 1:  # as in `_begin_and_end`: a call saved where most values are
        end = at + 1 + (length >> 1)
        return data[at + 1 : end].decode(), end
    begin, end = _begin_and_end(data, at)
    return data[begin:end].decode(), end


def _read_float(data: bytes, at: int) -> tuple[float, int]:
    return DOUBLE.unpack_from(data, at)[0], at + 8


def _read_bool(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise Unusual
    return data[at] == 1, at + 1


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    begin, end = _begin_and_end(data, at)
    return data[begin:end], end


READS: dict[Any, tuple[Read, Any]] = {
    str: (_read_str, ""),
    int: (_read_long, 0),
    float: (_read_float, NO_ZERO),
    bool: (_read_bool, False),
    bytes: (_read_bytes, b""),
}


def _read_tensor(dtype: Dtype) -> Read:
    wire = dtype.little_endian

    def read(data: bytes, at: int) -> tuple[Any, int]:
        begin, end = _begin_and_end(data, at)
        return np.frombuffer(data[begin:end], wire), end  # of a copy, which lies where numbers of that size should

    return read


def _read_items(read_one: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        found = []
        count, at = _read_count(data, at)
        for _ in range(count):
            value, at = read_one(data, at)
            found.append(value)
        return tuple(found), _end_of_blocks(data, at) if count else at

    return read


def _read_map(read_one: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found = {}
        count, at = _read_count(data, at)
        for _ in range(count):
            key, at = _read_str(data, at)
            found[key], at = read_one(data, at)
        return found, _end_of_blocks(data, at) if count else at

    return read


def _read_count(data: bytes, at: int) -> tuple[int, int]:
    """Return how many items follow; where it is negative their bytes are counted too, which our writer never does."""
    count, at = _read_long(data, at)
    if count < 0:
        raise Unusual
    return count, at


def _end_of_blocks(data: bytes, at: int) -> int:
    if data[at]:
        raise Unusual
    return at + 1


def _read_optional(read_one: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        if data[at] != SOME[0]:
            raise Unusual
        return read_one(data, at + 1)

    return read


def _remembering(read: Read) -> Read:
    """Return the same, quicker on bytes that are those of the value before: most spans of a run are sampled alike."""
    before: tuple[bytes, Any] | None = None

    def read_or_know(data: bytes, at: int) -> tuple[Any, int]:
        nonlocal before
        known = before  # once: another thread may put its own there meanwhile
        if known is not None and data.startswith(known[0], at):
            return known[1], at + len(known[0])
        value, end = read(data, at)
        if end <= len(data):  # else it is a piece of a value, and would be taken for the whole
            before = data[at:end], value
        return value, end

    return read_or_know
