"""Reads records directly from Avro bytes of the current schemas, without fastavro's intermediate dicts.

For every record class the source of one function is generated and compiled, so that no field costs a call. The function
accepts only what Headrace's own writers write. For rare or broken bytes it raises an exception; then fastavro reads the
message or describes the error (`schemas.codec`). If the function returns a record, it equals fastavro's.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import struct
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from headrace.schemas.avro import SCALARS

Reader = Callable[[bytes, int], tuple[Any, int]]
"""Takes a message and the record's begin; returns the record and its end, which may lie beyond the message."""

REFUSALS = (IndexError, ValueError, struct.error)
"""Errors that a reader raises on bytes that it does not accept."""

_LONGEST = 63
"""Bits of a number's first nine bytes; larger numbers are rare, and left to fastavro."""


@functools.cache
def build_reader(record: type) -> Reader:
    """Return the function that reads a record of this class."""
    names: dict[str, Any] = {
        "long": _read_long,
        "double": struct.Struct("<d").unpack_from,
        "view": np.frombuffer,
    }
    names |= {"Record": record, "Open": _open_twin(record)}
    # A frozen class sets each field by a separate call: setting fields on its twin takes a quarter of the time.
    lines = ["def read(data, at):", " one = Open()"]
    hints = typing.get_type_hints(record, include_extras=True)
    temporaries = (f"t{number}" for number in itertools.count())
    for field in dataclasses.fields(record):
        lines += [f" {line}" for line in _render_lines(hints[field.name], f"one.{field.name}", names, temporaries)]
    lines += [" one.__class__ = Record", " return one, at"]
    source = "\n".join(lines)
    exec(compile(source, f"<reader of {record.__name__}>", "exec"), names)  # noqa: S102 - the source was generated above
    return typing.cast("Reader", names["read"])


def _open_twin(record: type) -> type:
    """Return a writable class with the same slots, whose instances are later turned into the record's class."""
    return type(record.__name__, (), {"__slots__": tuple(field.name for field in dataclasses.fields(record))})


def _render_lines(hint: Any, target: str, names: dict[str, Any], temporaries: Iterator[str]) -> list[str]:
    """Return the source lines that read a value of a type into a target and move `at` behind the value."""
    if hint in SCALARS:
        return _render_scalar(hint, target)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        names[f"read_{hint.__name__}"] = build_reader(hint)
        return [f"{target}, at = read_{hint.__name__}(data, at)"]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        names[arguments[1].name] = arguments[1].little_endian
        return [*_render_stretch(), f"{target} = view(data[at - n : at], {arguments[1].name})"]
    if origin in (types.UnionType, typing.Union):
        inner = _render_lines(arguments[0], target, names, temporaries)
        branch = ["n = data[at]", "at += 1", "if n == 0:", f" {target} = None", "elif n == 2:"]
        return [*branch, *[f" {line}" for line in inner], "else:", " raise ValueError"]
    return _render_many(origin, arguments, target, names, temporaries)


def _render_many(
    origin: Any, arguments: tuple[Any, ...], target: str, names: dict[str, Any], temporaries: Iterator[str]
) -> list[str]:
    """Return the source lines for an array or a map: blocks of items, each after its count, the last one empty."""
    items, count, item, key = (next(temporaries) for _ in range(4))
    one = _render_lines(arguments[1 if origin is dict else 0], item, names, temporaries)
    if origin is dict:
        one = [*_render_scalar(str, key), *one, f"{items}[{key}] = {item}"]
    else:
        one = [*one, f"{items}.append({item})"]
    begin = "{}" if origin is dict else "[]"
    block = [
        *_render_size(count),
        f"if not {count}:",
        " break",
        f"for _ in range({count}):",
        *[f" {line}" for line in one],
    ]
    end = items if origin is dict else f"tuple({items})"
    return [f"{items} = {begin}", "while True:", *[f" {line}" for line in block], f"{target} = {end}"]


def _render_scalar(kind: type, target: str) -> list[str]:
    if kind is str:
        return [*_render_stretch(), f"{target} = data[at - n : at].decode() if n else ''"]
    if kind is bytes:
        return [*_render_stretch(), f"{target} = data[at - n : at]"]
    if kind is float:
        return [f"({target},) = double(data, at)", "at += 8"]
    if kind is bool:
        return ["n = data[at]", "at += 1", "if n > 1:", " raise ValueError", f"{target} = n == 1"]
    return [*_render_number("n"), f"{target} = n >> 1 ^ -(n & 1)"]


def _render_stretch() -> list[str]:
    """Return the source lines that read a length n and skip n bytes; the end of reading detects missing bytes."""
    return [*_render_size("n"), "at += n"]


def _render_size(size: str) -> list[str]:
    """Return the source lines that read a length or a count (never negative)."""
    return [*_render_number(size), f"if {size} & 1:", " raise ValueError", f"{size} >>= 1"]


def _render_number(number: str) -> list[str]:
    """Return the source lines that read a zigzag-coded number without decoding the zigzag; most take 1 or 2 bytes."""
    far = ["m = data[at]", "at += 1", "if m < 128:", f" {number} += (m << 7) - 128"]
    further = ["else:", f" {number}, at = long(data, at - 2)"]
    return [f"{number} = data[at]", "at += 1", f"if {number} > 127:", *[f" {line}" for line in far + further]]


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag-coded number, not yet decoded, and its end."""
    number = shift = 0
    while shift < _LONGEST:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
    raise ValueError
