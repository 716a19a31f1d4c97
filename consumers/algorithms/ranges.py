"""Checks of an algorithm's settings: each raises ValueError with a sentence."""

from __future__ import annotations

import math
from collections.abc import Collection


def at_least(least: float, **given: float) -> None:
    """Refuse a setting below `least`, or NaN."""
    for name, value in given.items():
        if not value >= least:
            raise ValueError(f"{name} is {least} or more; got {value}")


def above(bound: float, **given: float) -> None:
    """Refuse a setting that is not above `bound`, or NaN."""
    for name, value in given.items():
        if not value > bound:
            raise ValueError(f"{name} is above {bound}; got {value}")


def finite(**given: float) -> None:
    """Refuse a setting that is infinite or NaN."""
    for name, value in given.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} is a finite number; got {value}")


def one_of(words: Collection[str], **given: str) -> None:
    """Refuse a setting that is none of the words."""
    for name, value in given.items():
        if value not in words:
            raise ValueError(f"{name} is one of {', '.join(words)}; got {value!r}")
