"""Checks of what a recipe sets: each raises ValueError with a sentence that names the setting and its value.

The kinds of values, and which settings there are, `infra.recipe.named` checks by the signature. pydantic does not fit
for the ranges: they hold for whoever builds an algorithm from Python too, so each constructor would be wrapped and each
of pydantic's errors be put into such a sentence, which is more code than the calls. Half of the rules are between two
settings, which it leaves to the constructor in any case.
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
        if not -math.inf < value < math.inf:  # an integer may be beyond every float
            raise ValueError(f"{name} must be a finite number; got {value}")


def one_of(words: Collection[str], **given: str) -> None:
    """Refuse a setting that is not one of the words."""
    for name, value in given.items():
        if value not in words:
            raise ValueError(f"{name} must be one of {', '.join(words)}; got {value!r}")
