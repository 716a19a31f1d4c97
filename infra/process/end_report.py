"""Reports how one of several processes failed to their supervisor, because torchrun always exits with 1.

The supervisor names a file in the environment. The first failing process writes it; others fail because of the first.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.infra.environment import END_REPORT_VARIABLE, read_environment
from headrace.infra.errors import ERROR_MARK, HeadraceError
from headrace.infra.process.log_lines import read_lines

FAILED = 1
"""Exit code of a Python process that ends with a traceback."""
RESTART_EXIT = os.EX_TEMPFAIL
"""Exit code of a process that only needs a new start, which the supervisor does not count as a failure."""


@dataclass(frozen=True, slots=True)
class EndReport:
    """How a process failed."""

    exit_code: int
    lines: list[str]
    """Its last output: an error with its mark, or a traceback."""


@contextmanager
def report_failure() -> Iterator[None]:
    """Report an error that leaves the block and ends this process to the supervisor, if it wants a report."""
    try:
        yield
    except HeadraceError as error:
        report_end(error.exit_code, f"{ERROR_MARK}{error}")
        raise
    except SystemExit as ended:
        if ended.code:  # a finished process exits with 0
            report_end(ended.code if isinstance(ended.code, int) else FAILED, traceback.format_exc())
        raise
    except Exception:
        report_end(FAILED, traceback.format_exc())
        raise


def report_end(exit_code: int, said: str) -> None:
    """Write how this process ends, if the supervisor wants it and no other process was first; ignore a full disk."""
    if named := read_environment(END_REPORT_VARIABLE):
        with suppress(OSError), Path(named).open("x", encoding="utf-8", errors="replace") as file:
            file.write(f"{exit_code}\n{said}\n")


def end_process(why: str) -> None:
    """End this process from any thread, at once and with `RESTART_EXIT`, and report why."""
    report_end(RESTART_EXIT, f"{ERROR_MARK}{why}")
    os._exit(RESTART_EXIT)


def read_end(path: Path) -> EndReport | None:
    """Return the report; None if there is none."""
    code, *lines = read_lines(path, 0) or [""]
    return EndReport(int(code), lines) if code.isdecimal() else None
