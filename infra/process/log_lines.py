"""The end of a log, for the message on why its process failed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

ERROR_MARK = "error: "
"""What the command line begins an error with."""
ERROR_LEVEL = '"level": "error"'
ERROR_TYPE = re.compile(r"[A-Za-z_.]*(Error|Exception|Killed|Interrupt)\b")
"""How the last line of a traceback begins."""
LONGEST_LINE = 400
"""Characters."""
NOISE = re.compile(r"nanobind: |\s+- leaked (function|type|instance|keep_alive)|\s+- \.\.\. skipped remainder")
"""What C++ extensions write about themselves while a process exits, whatever ended it: it would bury the reason."""


def read_lines(path: Path, begin: int, most_bytes: int = 1_000_000) -> list[str]:
    """Return the lines of a log that say something, cut at 400 characters; none when it cannot be read.

    Args:
        path: The log.
        begin: Byte at which to begin; a negative one counts from the end.
        most_bytes: So many of the bytes from there on are read, the last ones.
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
    """Return the last lines of a log; none when it cannot be read."""
    return read_lines(path, -most_bytes, most_bytes)[-count:]


def find_last_error(lines: Sequence[str]) -> str:
    """Return the last line of a log that says an error, else its last one; empty when there is none."""
    errors = [line for line in lines if line.startswith(ERROR_MARK) or ERROR_LEVEL in line or ERROR_TYPE.match(line)]
    return (errors or list(lines) or [""])[-1].removeprefix(ERROR_MARK)
