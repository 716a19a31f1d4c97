"""Wall times for people."""

from __future__ import annotations

from datetime import UTC, datetime

DATE_AND_TIME = "%Y-%m-%d %H:%M:%S UTC"


def format_utc(ms: int, form: str = DATE_AND_TIME) -> str:
    """Return a time in UTC as text; a number that is no valid time (a foreign record may hold one) is named as it is.

    Args:
        ms: Milliseconds since the epoch.
        form: How to write it, as `strftime` takes it.
    """
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):  # a year outside the calendar
        return f"an unknown time ({ms} ms)"
