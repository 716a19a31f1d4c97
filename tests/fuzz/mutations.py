"""What a broken or hostile producer sends: valid bytes and records, altered. All of it follows from a seed."""

from __future__ import annotations

import dataclasses
import json
import math
import resource
import runpy
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np
import psutil

from headrace.schemas import codec
from headrace.schemas.avro import schema_of
from headrace.schemas.records import RECORDS

T = TypeVar("T")

example: Callable[[dict[str, Any]], Any] = runpy.run_path(str(Path(__file__).parent.parent / "golden" / "make.py"))[
    "example"
]
EXAMPLES = [example(schema_of(record)) for record in RECORDS]
VALID = [codec.encode(record) for record in EXAMPLES] + [codec.encode(record()) for record in RECORDS]

INTS = (
    0,
    1,
    -1,
    2,
    7,
    127,
    128,
    4096,
    2**15,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**60,
    2**62,
    2**63 - 1,
    -(2**63),
    -(2**31),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 1e30, -40.0)
TEXTS = (
    "", "\0", ".", "..", "../../etc/passwd", "a/../b", "/etc/passwd", "a\nb", "é", "\u202e", "𝕏" * 50, "x" * 5000,
    "%s%n{0}", "${HOME}", "train", "eval", "generated", "prompt", "null", "[" * 3000, '{"a":' * 2000, "9" * 5000, "-1",
    "os:system", "__import__('os')", "NaN", "file:///etc/passwd",
)  # fmt: skip

MOST_CPU_S = 3.0
"""Of one input."""
MOST_MEMORY = 1 << 30
"""What all inputs of a test together may add to the process: nothing that they say is believed before it is seen."""


@dataclasses.dataclass(frozen=True)
class Fuzz:
    """So many inputs, shared out over the tests."""

    seed: int
    count: int

    def run(self, what: str, share: float, make: Callable[[Random], T], check: Callable[[T], object]) -> None:
        """Check `share` of all inputs; each can be made again from the seed and its number alone."""
        number, given = -1, None
        print(f"{what}: {int(self.count * share)} inputs of seed {self.seed}")  # noqa: T201 - shown when a test fails
        with memory_limit(MOST_MEMORY):
            try:
                for number in range(int(self.count * share)):
                    given = make(Random(f"{self.seed}|{what}|{number}"))
                    begin = time.process_time()
                    check(given)
                    spent = time.process_time() - begin
                    assert spent < MOST_CPU_S, f"{spent:.1f} s of CPU time"
            except BaseException as error:
                error.add_note(f"input {number} of {what}, seed {self.seed}: {given!r:.1500}")
                raise


@contextmanager
def memory_limit(more_bytes: int) -> Iterator[None]:
    """Let the process grow by so much address space and no more: a larger allocation raises MemoryError.

    Not too little: malloc reserves 64 MiB for every thread that comes, and tests before left threads.
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def taken(given: Iterable[T], take: Callable[[T], object], refusal: type[Exception]) -> list[str]:
    """Return what was not refused, as it should have been."""
    found = []
    for one in given:
        try:
            take(one)
            found.append(f"{one!r:.300}")
        except refusal:
            pass
    return found


def varint(number: int) -> bytes:
    """Return a number as Avro writes a long; also one that no long holds."""
    left, out = (number << 1) ^ (number >> 63) if -(2**63) <= number < 2**63 else number, b""
    left &= 2**70 - 1
    while left > 0x7F:
        out, left = out + bytes([left & 0x7F | 0x80]), left >> 7
    return out + bytes([left])


# ---------------------------------------------------------------------------------------------------------------- bytes


def altered(rng: Random, data: bytes) -> bytes:
    """Return bytes with one to four faults."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = rng.choice(FAULTS)(rng, data)
    return data


def _flip(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) or 1)
    return data[:at] + bytes(byte ^ 1 << rng.randrange(8) for byte in data[at : at + 1]) + data[at + 1 :]


def _put(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) or 1)
    return data[:at] + bytes([rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))]) + data[at + 1 :]


def _cut(rng: Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _lack(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) or 1)
    return data[:at] + data[at + rng.randrange(1, 20) :]


def _insert(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randrange(1, 40)) + data[at:]


def _repeat(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) or 1)
    return data[:at] + data[at : at + 30] * rng.randrange(2, 20) + data[at:]


def _length(rng: Random, data: bytes) -> bytes:
    """Put a length, a count or a number that is none where another stood."""
    at = rng.randrange(min(10, len(data)), len(data) + 1)
    return data[:at] + varint(rng.choice(INTS)) + data[at + rng.randrange(3) :]


def _splice(rng: Random, data: bytes) -> bytes:
    other = rng.choice(VALID)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other)) :]


def _rename(rng: Random, data: bytes) -> bytes:
    """Name another schema, or none."""
    name = rng.choice(VALID)[:10] if rng.random() < 0.8 else codec.AVRO_MAGIC + rng.randbytes(8)
    return name + data[10:]


FAULTS = (_flip, _flip, _put, _cut, _lack, _insert, _repeat, _length, _length, _splice, _rename)


# -------------------------------------------------------------------------------------------------------------- records


def distorted(rng: Random, record: T) -> T:
    """Return a record that is well-formed and says nonsense: one to three values of the right type, all wrong."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        record = _other(rng, record, 0)
    return record


def _other(rng: Random, value: Any, depth: int) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = rng.choice(dataclasses.fields(value)).name
        return dataclasses.replace(value, **{name: _other(rng, getattr(value, name), depth + 1)})
    if isinstance(value, tuple):
        return _other_items(rng, value, depth)
    if isinstance(value, dict) and value:
        return {**value, rng.choice(TEXTS): _other(rng, value[rng.choice(list(value))], depth + 1)}
    return _other_scalar(rng, value)


def _other_scalar(rng: Random, value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, bytes):
        return altered(rng, value)
    if isinstance(value, np.ndarray):
        return _other_array(rng, value)
    choices = next(
        (choices for kind, choices in ((int, INTS), (float, FLOATS), (str, TEXTS)) if type(value) is kind), ()
    )
    return rng.choice(choices) if choices else value


def _other_items(rng: Random, items: tuple[Any, ...], depth: int) -> tuple[Any, ...]:
    at = rng.randrange(len(items) or 1)
    match rng.randrange(6) if items else 0:
        case 0:
            return ()
        case 1:
            return items[at:]
        case 2:
            return items * rng.choice((2, 50))
        case _:
            return (*items[:at], _other(rng, items[at], depth + 1), *items[at + 1 :])


def _other_array(rng: Random, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    size = rng.choice((0, 1, 2, 3, 7, array.size, array.size + 1, 2 * array.size))
    if array.dtype.kind == "f":
        return np.array([rng.choice((*FLOATS[:7], 3e38, -1.0)) for _ in range(size)], array.dtype)
    return np.array([rng.choice((0, 1, -1, 5, 2**31 - 1, -(2**31))) for _ in range(size)], array.dtype)


# ----------------------------------------------------------------------------------------------------- headers and JSON


def altered_headers(rng: Random, headers: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return headers with one fault."""
    at = rng.randrange(len(headers))
    name, value = headers[at]
    match rng.randrange(6):
        case 0:
            return headers[:at] + headers[at + 1 :]
        case 1:
            return [*headers, (name, rng.randbytes(5))]
        case 2:
            return [
                *headers[:at],
                (name, str(rng.choice((*INTS, 2**63, 10**30, 10**4000))).encode()),
                *headers[at + 1 :],
            ]
        case 3:
            return [*headers[:at], (name, rng.choice(TEXTS).encode()), *headers[at + 1 :]]
        case 4:
            return [(rng.choice(TEXTS), value), *headers]
        case _:
            return [
                *headers[:at],
                (name, rng.choice((b" 7", b"+7", b"1_0", "٣".encode(), b"\xff", b"7.0"))),
                *headers[at:],
            ]


def altered_json(rng: Random, plain: Any) -> str:
    """Return JSON with a value replaced anywhere, or its text altered."""
    if rng.random() < 0.5:
        return altered(rng, json.dumps(plain).encode()).decode(errors="replace")
    return json.dumps(_other_json(rng, plain))


def _other_json(rng: Random, plain: Any) -> Any:
    if isinstance(plain, dict) and plain and rng.random() < 0.8:
        key = rng.choice(list(plain))
        return {**plain, key: _other_json(rng, plain[key])}
    if isinstance(plain, list) and plain and rng.random() < 0.8:
        at = rng.randrange(len(plain))
        return [*plain[:at], _other_json(rng, plain[at]), *plain[at + 1 :]]
    return rng.choice((None, True, rng.choice(INTS), rng.choice(FLOATS), rng.choice(TEXTS), [], {}, [[]], {"a": 1}))
