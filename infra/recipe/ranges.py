"""Range checks for settings: each raises ValueError with the setting's name and value.

`infra.recipe.named` checks names and types of settings by the signature. pydantic does not fit for ranges: they must
also hold for algorithms built from Python, so each constructor would need a wrapper and each pydantic error a
translation, which is more code than these calls. Half of the rules compare two settings, which pydantic leaves to the
constructor.
"""

from __future__ import annotations

import math
from collections.abc import Collection


def at_least(least: float, **given: float) -> None:
    """Refuse a setting below `least`, or infinite, or NaN."""
    finite(**given)
    for name, value in given.items():
        if value < least:
            raise ValueError(f"{name} must be {least} or more; got {value}")


def above(bound: float, **given: float) -> None:
    """Refuse a setting that is not above `bound`, or infinite, or NaN."""
    finite(**given)
    for name, value in given.items():
        if value <= bound:
            raise ValueError(f"{name} must be above {bound}; got {value}")


def within(least: float, most: float, **given: float) -> None:
    """Refuse a setting outside [least, most], or NaN."""
    for name, value in given.items():
        if not least <= value <= most:
            raise ValueError(f"{name} must be from {least} to {most}; got {value}")


def finite(**given: float) -> None:
    """Refuse a setting that is infinite or NaN."""
    for name, value in given.items():
        if not -math.inf < value < math.inf:  # an integer may exceed every float
            raise ValueError(f"{name} must be a finite number; got {value}")


def one_of(words: Collection[str], **given: str) -> None:
    """Refuse a setting that is not one of the words."""
    for name, value in given.items():
        if value not in words:
            raise ValueError(f"{name} must be one of {', '.join(words)}; got {value!r}")
