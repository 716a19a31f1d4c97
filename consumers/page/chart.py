"""A curve as lines of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

BLOCKS = " ▁▂▃▄▅▆▇█"
EIGHTHS = 8
LARGEST = 1e9


def chart(values: Sequence[float], width: int, height: int) -> list[str]:
    """Return `height` lines: a bar per value, or per mean of neighbours where there are more values than columns.

    The scale is 0 to 1, wider where a value lies outside.
    """
    if not values:
        return [axis + "┤" for axis in _axis(0.0, 1.0, height)]
    values = [max(-LARGEST, min(value, LARGEST)) if math.isfinite(value) else 0.0 for value in values]
    low, high = min(0.0, *values), max(1.0, *values)
    bars = [(value - low) / (high - low) * height * EIGHTHS for value in _columns(values, width)]
    lines = []
    for row, axis in enumerate(_axis(low, high, height)):
        floor = (height - 1 - row) * EIGHTHS
        lines.append(axis + "┤" + "".join(BLOCKS[_filled(bar - floor)] for bar in bars))
    return lines


def _filled(eighths: float) -> int:
    return max(0, min(EIGHTHS, round(eighths)))


def _columns(values: Sequence[float], width: int) -> list[float]:
    """Return at most `width` means over runs of neighbours, as equal in length as can be."""
    count = min(width, len(values))
    edges = [n * len(values) // count for n in range(count + 1)]
    return [sum(values[begin:end]) / (end - begin) for begin, end in pairwise(edges)]


def _axis(low: float, high: float, height: int) -> list[str]:
    labels = {0: high, height // 2: (low + high) / 2, height - 1: low}
    return [f"{labels[row]:5.2f} " if row in labels else " " * 6 for row in range(height)]
