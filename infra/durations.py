"""Spans of time as people write them: `90s`, `12h`, `1d`."""

from __future__ import annotations

import re
from datetime import timedelta

from headrace.infra.errors import UsageError

DURATION_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def duration_of(text: str) -> timedelta:
    """Read a whole number and a unit. Raises UsageError that shows the form."""
    match = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if match is None:
        raise UsageError(f"{text!r} is not a duration: write an integer and one of s, m, h, d, as in 36h or 2d")
    return timedelta(**{DURATION_UNITS[match[2]]: int(match[1])})
