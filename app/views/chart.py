"""Curves in the terminal, and the checks of a picture's file before anything is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path

from headrace.infra.errors import UsageError

BLOCKS = " ▁▂▃▄▅▆▇█"
UNKNOWN_MARK = "·"
EIGHTHS = 8
CHART_WIDTH, CHART_HEIGHT = 64, 7
"""Width of a page's curve, in characters."""
LARGEST = 1e9


def chart(values: Sequence[float | None], width: int, height: int) -> list[str]:
    """Return `height` lines: a bar per value, or per mean of neighbours if there are more values than columns.

    The scale is 0 to 1, or wider if a value lies outside. None, nan and inf mean that a value is not known.
    """
    known = [None if value is None or not math.isfinite(value) else _clamp(value) for value in values]
    there = [value for value in known if value is not None]
    low, high = min([0.0, *there]), max([1.0, *there])
    bars = [
        value if value is None else (value - low) / (high - low) * height * EIGHTHS
        for value in _average_columns(known, width)
    ]
    lines = []
    for row, axis in enumerate(_label_axis(low, high, height)):
        floor = (height - 1 - row) * EIGHTHS
        lines.append(axis + "┤" + "".join(_draw_cell(bar, floor) for bar in bars))
    return lines


def by_version(points: Iterable[tuple[int, float]]) -> list[float | None]:
    """Return the values from the first version to the last; None for a version without a value."""
    known = dict(points)
    return [known.get(version) for version in range(min(known), max(known) + 1)] if known else []


def _clamp(value: float) -> float:
    return max(-LARGEST, min(value, LARGEST))


def _draw_cell(bar: float | None, floor: int) -> str:
    """Return what a bar fills of the cell that begins at `floor` eighths."""
    if bar is None:
        return " " if floor else UNKNOWN_MARK
    least = 0 if floor else 1
    return BLOCKS[max(least, min(EIGHTHS, round(bar - floor)))]


def _average_columns(values: Sequence[float | None], width: int) -> list[float | None]:
    """Return at most `width` means, each over about the same number of neighbours."""
    count = min(width, len(values))
    edges = [n * len(values) // count for n in range(count + 1)] if count else []
    runs = ([value for value in values[begin:end] if value is not None] for begin, end in pairwise(edges))
    return [sum(run) / len(run) if run else None for run in runs]


def _label_axis(low: float, high: float, height: int) -> list[str]:
    labels = {0: high, height // 2: (low + high) / 2, height - 1: low}
    return [f"{labels[row]:5.2f} " if row in labels else " " * 6 for row in range(height)]


def check_picture(file: Path, *suffixes: str) -> None:
    """Raise UsageError without matplotlib, for another suffix, and for a missing folder."""
    try:
        import_module("matplotlib")
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: make install EXTRAS=plots") from error
    if file.suffix not in suffixes:
        raise UsageError(f"--plot {file}: name a {' or '.join(suffixes)} file")
    if not file.absolute().parent.is_dir():
        raise UsageError(f"--plot {file}: folder {file.absolute().parent} does not exist")
