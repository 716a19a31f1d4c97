"""Reads the end of a log, to show why its process failed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from headrace.infra.errors import ERROR_MARK

ERROR_TYPE = re.compile(
    r"[A-Za-z_.]*(Error|Exception|Killed|Interrupt)\b|Fatal Python error: |Timeout \(\d|  what\(\): "
)
"""Matches the begin of a traceback's last line, or of a dump of all stacks."""
LONGEST_LINE = 400
"""Most characters of a shown line."""
NOISE = re.compile(
    r"nanobind: |See https://nanobind|\s+- leaked (function|type|instance|keep_alive)|\s+- \.\.\. skipped remainder"
    r"|.*resource_tracker: |\s+warnings\.warn\(|\s+\+[-+]|Exception raised from |frame #\d+: "
)
"""Matches what extensions and Python print at process exit, which would hide the reason, and rules between errors."""
_GROUP_MARK = re.compile(r"\s+[|+] ")
"""Begin of a line of a traceback of several errors."""
_NO_SENTENCE = re.compile(r"\[[a-z]+\] |\{|\s+File \"|(Current t|T)hread 0x|Extension modules: ")
"""Matches a line that does not tell why a process ended: a logged event that is no error, or a line of a stack."""
_REASONS = ("why", "error", "remedy")
_ON_EVERY_LINE = frozenset({"component", "event", "level", "timestamp", "run"})


def read_lines(path: Path, begin: int, most_bytes: int = 1_000_000) -> list[str]:
    """Return the meaningful lines of a log as sentences, cut at 400 characters; none if it cannot be read.

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
    return unfold_lines(text.splitlines())


def read_last_lines(path: Path, count: int, most_bytes: int = 262_144) -> list[str]:
    """Return the last lines of a log; none if it cannot be read."""
    return read_lines(path, -most_bytes, most_bytes)[-count:]


def unfold_lines(lines: Iterable[str]) -> list[str]:
    """Return lines without noise, logged events as sentences and logged tracebacks as lines."""
    unfolded = _leave_ignored_out(part for line in lines for part in _unfold(line))
    return [line[:LONGEST_LINE] for line in unfolded if line.strip() and not NOISE.match(line)]


def find_last_error(lines: Sequence[str]) -> str:
    """Return the last error of a log in a sentence, else the last line that could be one; empty if there is none."""
    lines = unfold_lines(lines)
    errors = [at for at, line in enumerate(lines) if line.startswith(ERROR_MARK) or ERROR_TYPE.match(line)]
    others = [at for at, line in enumerate(lines) if not _NO_SENTENCE.match(line)]
    if not (found := errors or others):
        return ""
    line, after = lines[found[-1]], lines[found[-1] + 1 :]
    more = f" {after[0].strip()}" if line.endswith(":") and after and after[0].startswith(" ") else ""
    return (line + more).removeprefix(ERROR_MARK).strip()


def _leave_ignored_out(lines: Iterable[str]) -> Iterator[str]:
    """Leave out what Python could not raise while it ended, with its traceback: it hides the reason."""
    ignored = False
    for line in lines:
        if line.startswith("Exception ignored in"):
            ignored = True
        elif not ignored:
            yield line
        elif not line.startswith((" ", "Traceback ")):
            ignored = False  # the last line of the traceback


def _unfold(line: str) -> list[str]:
    """Return a line of JSON as text: an error in the form of the command line, or its traceback."""
    if not line.startswith("{"):
        return [_GROUP_MARK.sub("", line, count=1)] if _GROUP_MARK.match(line) else [line]
    try:
        told = json.loads(line)
    except ValueError:
        return [line]
    if not isinstance(told, dict) or not isinstance(told.get("event"), str) or "level" not in told:
        return [line]
    if told["level"] == "error":
        if isinstance(told.get("exception"), str):
            return str(told["exception"]).splitlines()
        if reason := next((told[name] for name in _REASONS if isinstance(told.get(name), str)), ""):
            return [ERROR_MARK + " ".join(reason.split())]
    values = ", ".join(f"{name}={value}" for name, value in told.items() if name not in _ON_EVERY_LINE)
    mark = ERROR_MARK if told["level"] == "error" else f"[{told['level']}] "
    return [f"{mark}{told['event']} {values}".rstrip()]
