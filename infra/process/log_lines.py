"""Reads the end of a log, to show why its process failed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

ERROR_MARK = "error: "
"""Begin of an error line of the command line."""
ERROR_LEVEL = '"level": "error"'
ERROR_TYPE = re.compile(r"[A-Za-z_.]*(Error|Exception|Killed|Interrupt)\b")
"""Matches the begin of a traceback's last line."""
LONGEST_LINE = 400
"""Most characters of a shown line."""
NOISE = re.compile(r"nanobind: |\s+- leaked (function|type|instance|keep_alive)|\s+- \.\.\. skipped remainder")
"""Matches output of C++ extensions at process exit, which would hide the reason of the exit."""


def read_lines(path: Path, begin: int, most_bytes: int = 1_000_000) -> list[str]:
    """Return the meaningful lines of a log, cut at 400 characters; none if it cannot be read.

    Args:
        path: The log.
        begin: Byte at which to begin; negative counts from the end.
        most_bytes: Most bytes to read from there on: the last ones.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begin if begin >= 0 else size + begin, size - most_bytes, 0))
            text = file.read(most_bytes).decode(errors="replace")
    except OSError:
        return []
    return [line[:LONGEST_LINE] for line in text.splitlines() if line.strip() and not NOISE.match(line)]


def read_last_lines(path: Path, count: int, most_bytes: int = 262_144) -> list[str]:
    """Return the last lines of a log; none if it cannot be read."""
    return read_lines(path, -most_bytes, most_bytes)[-count:]


def find_last_error(lines: Sequence[str]) -> str:
    """Return the last error line of a log, else its last line; empty for an empty log."""
    errors = [line for line in lines if line.startswith(ERROR_MARK) or ERROR_LEVEL in line or ERROR_TYPE.match(line)]
    return (errors or list(lines) or [""])[-1].removeprefix(ERROR_MARK)
