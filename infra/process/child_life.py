"""A child under supervision: what it runs, how it is, and the words about its deaths."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.infra.errors import ERROR_MARK, HeadraceError, UsageError
from headrace.infra.inflection import inflect
from headrace.infra.own_frames import find_own_location
from headrace.infra.process.child_process import ChildProcess
from headrace.infra.process.end_report import EndReport
from headrace.infra.process.log_lines import find_last_error, read_last_lines, read_lines

USAGE_ERROR = 2
LAST_LOG_LINES = 12


class GaveUp(HeadraceError):
    """A component cannot be kept running."""


class Misused(GaveUp, UsageError):
    """A component ended with a usage error."""


@dataclass(frozen=True, slots=True)
class Child:
    """A component process."""

    name: str
    command: Sequence[str]
    torch_processes: int = 0
    """Number of its processes that compute with torch and share the cores."""
    imports: Sequence[str] = ()
    """Modules that the fork server imports before the fork; none for a component that is never forked."""
    is_region_part: bool = False
    """Whether it serves a region: the run goes on without it, so it is started again without end."""


@dataclass(frozen=True, slots=True)
class ChildState:
    """The state of a child."""

    state: str
    pid: int | None
    starts: int
    exit_code: int | None
    """Exit code of the newest ended life; negative for a signal."""
    error: str = ""
    """Last error in its log for the newest death, with the line of user code if there is one."""


@dataclass(slots=True)
class Life:
    """The supervisor's state of one child."""

    child: Child
    logs: Path
    """Folder of its log and of the report of its end."""
    process: ChildProcess | None = None
    starts: int = 0
    exit_code: int | None = None
    log_begin: int = 0
    """Size of its log before this life."""
    report: EndReport | None = None
    """Report of the first failed process in the newest ended life, if any."""
    error: str = ""
    """Error of the newest death."""
    state: str = "starting"
    """starting | running | waiting | finished | failed | stopped."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when it must end and is not started again."""
    gone: threading.Event = field(default_factory=threading.Event)
    """Set when it has ended for good."""

    @property
    def log(self) -> Path:
        """File of its log."""
        return self.logs / f"{self.child.name}.log"

    @property
    def report_file(self) -> Path:
        """File in which it reports why it ends."""
        return self.logs.absolute() / f"{self.child.name}.end"

    @property
    def log_verb(self) -> str:
        """Verb for the log in messages: with a report, the log's last lines may be of torchrun or other processes."""
        return "has" if self.report else "ends with"

    def build_state(self) -> ChildState:
        """Return the state as others see it."""
        return ChildState(
            self.state, self.process.pid if self.process else None, self.starts, self.exit_code, self.error
        )

    def note_error(self) -> str:
        """Store the last error in the log of an ended life with its location; return it without the location."""
        lines = self.report.lines if self.report else read_lines(self.log, self.log_begin)
        error = find_last_error(lines)
        location = find_own_location(lines)
        self.error = f"{error} at {location}" if location else error
        return error

    def describe_death(self) -> str:
        """Return a sentence about a death after which it is started again."""
        ends = f" {self.log_verb}: {self.error}" if self.error else ""
        return f"{self.child.name} died (exit code {self.exit_code}) and is started again; its log {self.log}{ends}"

    def build_failure(self) -> GaveUp:
        """Return the error of a child that is given up, with the end of its log."""
        name = self.child.name
        lines = self.report.lines[-LAST_LOG_LINES:] if self.report else read_last_lines(self.log, LAST_LOG_LINES)
        if self.exit_code == USAGE_ERROR:
            marked = [n for n, line in enumerate(lines) if line.startswith(ERROR_MARK)]
            sentence = "\n".join(lines[marked[-1] :]).removeprefix(ERROR_MARK) if marked else "\n".join(lines)
            return Misused(f"{name}: {sentence}")
        self.note_error()
        why = f" ({self.error})" if self.error else ""
        shown = "\n".join(f"  {line}" for line in lines) or "  (nothing)"
        return GaveUp(
            f"{name} died {self.starts} {inflect(self.starts, 'time')}, the last time with exit code "
            f"{self.exit_code}{why}, and is not started again. Its log {self.log} {self.log_verb}:\n{shown}"
        )
