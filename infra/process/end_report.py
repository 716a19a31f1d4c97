"""How one of several processes failed, for their supervisor: torchrun ends with 1 whatever its processes ended with.

The supervisor names a file in the environment. Who fails first writes it, as the others fail because of that.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.infra.environment import END_REPORT_VARIABLE, read_environment
from headrace.infra.errors import HeadraceError
from headrace.infra.process.log_lines import ERROR_MARK, read_lines

FAILED = 1
"""Exit code of a process that Python ends with a traceback."""


@dataclass(frozen=True, slots=True)
class EndReport:
    """How a process failed."""

    exit_code: int
    lines: list[str]
    """What it said last: an error with its mark, or a traceback."""


@contextmanager
def report_failure() -> Iterator[None]:
    """Report the error that leaves the block, which then ends this process, to the supervisor that asks for it."""
    try:
        yield
    except HeadraceError as error:
        report_end(error.exit_code, f"{ERROR_MARK}{error}")
        raise
    except SystemExit as ended:
        if ended.code:  # a process whose work is done leaves by 0
            report_end(ended.code if isinstance(ended.code, int) else FAILED, traceback.format_exc())
        raise
    except Exception:
        report_end(FAILED, traceback.format_exc())
        raise


def report_end(exit_code: int, said: str) -> None:
    """Write how this process ends, unless nobody asks for it or another process was first; a full disk loses it."""
    if named := read_environment(END_REPORT_VARIABLE):
        with suppress(OSError), Path(named).open("x", encoding="utf-8", errors="replace") as file:
            file.write(f"{exit_code}\n{said}\n")


def read_end(path: Path) -> EndReport | None:
    """Return what was reported; None if nothing was."""
    code, *lines = read_lines(path, 0) or [""]
    return EndReport(int(code), lines) if code.isdecimal() else None
