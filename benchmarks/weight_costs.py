"""What one update costs in each format: bytes, seconds and memory."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.weight_formats import FORMATS, HEADRACE, Format
from benchmarks.weight_sets import Change, PackedWeights, change_between, made, qwen3_shapes, successor

DENSITIES = (0.001, 0.005, 0.01, 0.02, 0.05)
MEMORY_DENSITIES = (0.01, 0.05)
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Speed:
    """GB/s of the bytes of one set, best of the rounds."""

    encode: float
    apply: float
    new_copy: float
    """Of a copy into new memory, as it is taken of what must be kept; best of all between."""
    copy: float
    """Of a copy into memory that was written before, likewise."""


@dataclass(frozen=True, slots=True)
class Row:
    """One update in one format."""

    format: str
    density: float
    bytes: int
    bytes_per_value: float
    """Per changed value."""
    times_floor: float
    times_smaller: float
    """Than the whole set."""
    speed: Speed | None = None


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Bytes that were resident at most, less those before; at this density, by this format."""

    density: float
    encode: int
    apply: int
    update: int
    """Bytes of the update itself."""


@dataclass(frozen=True, slots=True)
class Sets:
    """What an update leads from and to, and memory to apply it in."""

    base: PackedWeights
    new: PackedWeights
    target: PackedWeights


# --------------------------------------------------------------------------------------------------- bytes and seconds


def measure_formats(parameters: float, rounds: int, tell: Tell) -> list[Row]:
    """Take every format through every density. Raises AssertionError for one that does not give the new weights."""
    base = made(qwen3_shapes(parameters))
    target = base.copy()
    rows = []
    for density in DENSITIES:
        sets = Sets(base, successor(base, density), target)
        change, copies = change_between(base, sets.new), Copies(base.items.nbytes)
        taken = []
        for form in FORMATS:
            size, encoding, applying = _measure_format(form, sets, rounds, copies)
            taken.append((form.name, size, encoding, applying))
            tell(f"{density:.1%} changed, {form.name}: {size:,} bytes")
        new_copy, copy = copies.new.best, copies.written.best
        rows += [row_of(name, change, size, Speed(e.best, a.best, new_copy, copy)) for name, size, e, a in taken]
    return rows


def sizes(base: PackedWeights, new: PackedWeights) -> list[Row]:
    """Return what one update takes in every format, at no particular speed."""
    change = change_between(base, new)
    return [row_of(form.name, change, len(form.encoder(base)(new))) for form in FORMATS]


def row_of(name: str, change: Change, size: int, speed: Speed | None = None) -> Row:
    per_value, floor = size / max(1, change.changed), max(1.0, change.floor_bytes)
    return Row(name, change.density, size, per_value, size / floor, 2 * change.items / size, speed)


class Stopwatch:
    """Best speed of something that was done several times to so many bytes."""

    def __init__(self, worked_on: int) -> None:
        self._bytes = worked_on
        self.best = 0.0
        """GB/s."""

    def time(self, action: Callable[[], Any]) -> Any:
        """Do it and return what it returns."""
        begin = time.perf_counter()
        result = action()
        self.best = max(self.best, self._bytes / 1e9 / (time.perf_counter() - begin))
        return result


class Copies:
    """Speeds of plain copies of one set."""

    def __init__(self, size_bytes: int) -> None:
        self.new, self.written = Stopwatch(size_bytes), Stopwatch(size_bytes)

    def take(self, base: PackedWeights, target: PackedWeights) -> None:
        """Copy a set into new memory, and into memory that was written before."""
        self.new.time(base.items.copy)
        self.written.time(lambda: np.copyto(target.items, base.items))


def _measure_format(form: Format, sets: Sets, rounds: int, copies: Copies) -> tuple[int, Stopwatch, Stopwatch]:
    """Encode, copy and apply some times, and see that the result is right; return bytes and speeds."""
    base, new, target = sets.base, sets.new, sets.target
    encoding, applying = Stopwatch(base.items.nbytes), Stopwatch(base.items.nbytes)
    encode, data = form.encoder(base), b""
    for _ in range(rounds):
        data = encoding.time(lambda: encode(new))
        copies.take(base, target)
        apply = form.applier(target)
        applying.time(lambda: apply(data))  # noqa: B023 - called at once
        assert target.is_equal_to(new), f"{form.name} does not give the new weights"  # noqa: S101 - nothing else counts
    return len(data), encoding, applying


# -------------------------------------------------------------------------------------------------------------- memory


def measure_memory(parameters: float, tell: Tell) -> list[PeakMemory]:
    """Encode and apply in this format, each in a process that did nothing else before."""
    found = []
    for density in MEMORY_DENSITIES:
        with tempfile.TemporaryDirectory(prefix="headrace-weights-") as folder:
            file = Path(folder) / "update"
            encode = _run_in_new_process(_encode_peak, parameters, density, file)
            apply = _run_in_new_process(_apply_peak, parameters, file)
            found.append(PeakMemory(density, encode, apply, file.stat().st_size))
        tell(f"{density:.1%} changed: encoding took {encode:,} bytes, applying {apply:,}")
    return found


def _run_in_new_process(function: Callable[..., int], *arguments: Any) -> int:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def _encode_peak(parameters: float, density: float, file: Path) -> int:
    base = made(qwen3_shapes(parameters))
    new = successor(base, density)
    encode, before = HEADRACE.encoder(base), _reset_peak()
    data = encode(new)
    peak = _resident("VmHWM") - before
    file.write_bytes(data)
    return peak


def _apply_peak(parameters: float, file: Path) -> int:
    # The update is read in here: it counts as taken.
    apply, before = HEADRACE.applier(made(qwen3_shapes(parameters))), _reset_peak()
    apply(file.read_bytes())
    return _resident("VmHWM") - before


def _reset_peak() -> int:
    """Let the kernel forget how much was resident at most; return how much is now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _resident("VmRSS")


def _resident(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))
