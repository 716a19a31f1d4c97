"""Keeps child processes running: starts them together, restarts dead ones, stops them together.

One thread per child starts it, waits for it and decides on a restart; the thread lives as long as the child, as the
parent-death signal requires.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import structlog

from headrace.infra.backoff import Backoff
from headrace.infra.environment import END_REPORT_VARIABLE
from headrace.infra.errors import ERROR_MARK, FENCED, HeadraceError, UsageError
from headrace.infra.inflection import inflect
from headrace.infra.own_frames import find_own_location
from headrace.infra.process.child_process import (
    ChildCommand,
    ChildProcess,
    build_child_environment,
    end_all,
    kill_session,
    spawn,
    wait_without_reaping,
)
from headrace.infra.process.cpu_account import CpuAccount
from headrace.infra.process.end_report import EndReport, read_end
from headrace.infra.process.fork_client import ForkServer
from headrace.infra.process.fork_server import CannotFork, ForkRequest
from headrace.infra.process.log_lines import find_last_error, read_last_lines, read_lines
from headrace.infra.process.patience import Deaths, Patience

FINISHED = 0
USAGE_ERROR = 2
SAMPLE_S = 1.0
LAST_LOG_LINES = 12

log = structlog.get_logger()


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


@dataclass(slots=True)
class _Life:
    """The supervisor's state of one child."""

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

    @property
    def log_verb(self) -> str:
        """Verb for the log in messages: with a report, the log's last lines may be of torchrun or other processes."""
        return "has" if self.report else "ends with"


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


class Supervisor:
    """Keeps children running until they finish, fail for good or are stopped.

    Args:
        children: The children to run.
        logs: Folder of their logs, `<name>.log` each.
        environment: Environment of every child; threads and Python's switches are added.
        patience: When to restart, and when to give up.
        is_over: Whether a child that ends with exit code 0 has finished. If not, somebody stopped it from outside, and
        it is restarted.
        progress: Returns a value that changes with the run's progress; None while no progress is possible.
        other_pids: Names and pids of further processes whose CPU time is counted.
        forks: Fork server for children with `imports`; it is stopped with them. Without it, and if it cannot fork,
        children are started as programs.
    """

    def __init__(  # noqa: PLR0913 - all but the first three by name
        self,
        children: Sequence[Child],
        logs: Path,
        environment: Mapping[str, str],
        *,
        patience: Patience,
        is_over: Callable[[], bool],
        progress: Callable[[], object] = lambda: None,
        other_pids: Callable[[], Mapping[str, int]] = dict,
        forks: ForkServer | None = None,
    ) -> None:
        self.children = tuple(children)
        self.logs = logs
        self._environment = build_child_environment(environment, sum(child.torch_processes for child in children))
        self._patience = patience
        self._run_is_over = is_over
        self._progress = progress
        self._other_pids = other_pids
        self._forks = forks
        self._cpu = CpuAccount()
        self._lives = {child.name: _Life() for child in children}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failures: list[GaveUp] = []
        self._news: SimpleQueue[str] = SimpleQueue()
        self._keepers: list[threading.Thread] = []
        self._sampler: threading.Thread | None = None

    def start(self) -> None:
        """Start all children in their order, each in its own thread."""
        self.logs.mkdir(parents=True, exist_ok=True)
        turn = threading.Event()
        turn.set()
        for child in self.children:
            begun = threading.Event()
            keeper = threading.Thread(
                target=self._keep_running, args=(child, turn, begun), name=f"keep-{child.name}", daemon=True
            )
            self._keepers.append(keeper)
            keeper.start()
            turn = begun
        self._sampler = threading.Thread(target=self._sample, name="cpu-account", daemon=True)
        self._sampler.start()

    def stop(self, timeout_s: float = 8) -> None:
        """End all children and their descendants: SIGTERM, wait up to `timeout_s`, SIGKILL."""
        self._stop.set()
        if self._forks is not None:
            self._forks.stop()
        with self._lock:  # from here on no child is added
            pids = [life.process.pid for life in self._lives.values() if life.process is not None]
        killed = end_all(pids, timeout_s)
        for keeper in self._keepers:
            keeper.join()
        if self._sampler is not None:
            self._sampler.join()
        if killed:
            # Processes that did not stop in time were killed.
            log.warning("children.killed", count=len(killed), after_s=timeout_s)

    def raise_failure(self) -> None:
        """Raise GaveUp if a child cannot be kept running."""
        if self._failures:
            raise self._failures[0]

    def states(self) -> dict[str, ChildState]:
        """Return the state of every child."""
        with self._lock:
            return {
                name: ChildState(
                    life.state, life.process.pid if life.process else None, life.starts, life.exit_code, life.error
                )
                for name, life in self._lives.items()
            }

    def cpu_seconds(self) -> dict[str, dict[str, float]]:
        """Return CPU seconds by name: of `process` and, as a part of it, `librdkafka`."""
        return self._cpu.seconds()

    def _keep_running(self, child: Child, turn: threading.Event, begun: threading.Event) -> None:
        """Run a child and restart it; begin when it is its turn, and set `begun` when it has begun."""
        turn.wait()
        try:
            self._restart_until_over(child, begun)
        finally:
            begun.set()

    def _restart_until_over(self, child: Child, begun: threading.Event) -> None:
        life = self._lives[child.name]
        backoff = Backoff(self._patience.first_pause_s, self._patience.longest_pause_s)
        deaths = Deaths(self._patience)
        reported: set[str] = set()
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._run_once(child, life, begun)
            except OSError as error:
                self._failures.append(GaveUp(f"{child.name} cannot be started ({child.command[0]}): {error}"))
                life.state = "failed"
                return
            lived = time.monotonic() - began
            deaths.count(life.exit_code, lived, self._progress())
            if self._conclude_if_over(child, life, deaths):
                return
            if lived >= self._patience.healthy_after_s:
                backoff.reset()
            pause = backoff.next_s()
            life.state = "waiting"
            if life.exit_code == FENCED:  # another process has replaced it, and a restart would fence that one
                pause = self._patience.longest_pause_s
                # Another process of the same kind has replaced it; it is started again later.
                log.warning("child.fenced", child=child.name, again_in_s=pause)
            else:
                log.warning("child.died", child=child.name, exit_code=life.exit_code, again_in_s=pause)
            self._report(child, life, reported)
            self._stop.wait(pause)
            if self._conclude_if_over(child, life, deaths):  # a worker may see the end of the run before the launcher
                return
        life.state = "stopped"

    def _report(self, child: Child, life: _Life, reported: set[str]) -> None:
        """Queue a report of a death with the last error in the log: for the first death, and for each new error."""
        error = self._note_error(child, life)
        kind = f"{life.exit_code} {re.sub('[0-9]+', '', error)}"
        if kind in reported:
            return
        reported.add(kind)
        ends = f" {life.log_verb}: {life.error}" if error else ""
        log_file = self._log_of(child)
        self._news.put(f"{child.name} died (exit code {life.exit_code}) and is started again; its log {log_file}{ends}")

    def _note_error(self, child: Child, life: _Life) -> str:
        """Store the last error in the log of an ended life with its location; return it without the location."""
        lines = life.report.lines if life.report else read_lines(self._log_of(child), life.log_begin)
        error = find_last_error(lines)
        location = find_own_location(lines)
        life.error = f"{error} at {location}" if location else error
        return error

    def take_news(self) -> list[str]:
        """Return, once, sentences on deaths for people: the first death of a child, and deaths with a new error."""
        found = []
        while not self._news.empty():
            found.append(self._news.get())
        return found

    def _conclude_if_over(self, child: Child, life: _Life, deaths: Deaths) -> bool:
        """Return whether an ended child must not be restarted, and note why."""
        if self._stop.is_set():
            life.state = "stopped"
        elif life.exit_code == FINISHED and self._run_is_over():
            life.state = "finished"
        elif life.exit_code == USAGE_ERROR or deaths.has_too_many:
            self._failures.append(self._build_failure(child, life))
            life.state = "failed"  # set last, because readers of this state then ask for the reason
        else:
            return False
        return True

    def _run_once(self, child: Child, life: _Life, begun: threading.Event) -> None:
        """Run a child once. Raises OSError if it cannot be started."""
        path = self._log_of(child)
        self._report_of(child).unlink(missing_ok=True)
        life.log_begin = path.stat().st_size if path.exists() else 0
        try:
            process = self._start_child(child)
        finally:
            begun.set()
        if process is None:
            return
        with self._lock:
            if self._stop.is_set():  # `stop` ran before this child was registered
                kill_session(process.pid)
            life.process, life.state = process, "running"
            life.starts += 1
        wait_without_reaping(process.pid)
        self._cpu.sample(child.name, process.pid)
        kill_session(process.pid)  # its leftover processes
        with self._lock:
            life.exit_code = process.wait()
            life.report = read_end(self._report_of(child)) if life.exit_code != FINISHED else None
            if life.report is not None:
                life.exit_code = life.report.exit_code
            life.process = None

    def _start_child(self, child: Child) -> ChildProcess | None:
        """Start a child, by fork if possible; return its process, or None if all must stop. Raises OSError."""
        path = self._log_of(child)
        if self._forks is not None and child.imports:
            try:
                return self._forks.fork(ForkRequest(child.imports, child.name, child.command, str(path)))
            except CannotFork as error:
                if not self._stop.is_set():
                    # It is started as a new process instead, which is slower.
                    log.warning("child.not_forked", child=child.name, why=str(error))
        environment = {**self._environment, END_REPORT_VARIABLE: str(self._report_of(child))}
        return None if self._stop.is_set() else spawn(ChildCommand(child.command, environment, path))

    def _log_of(self, child: Child) -> Path:
        return self.logs / f"{child.name}.log"

    def _report_of(self, child: Child) -> Path:
        return self.logs.absolute() / f"{child.name}.end"

    def _build_failure(self, child: Child, life: _Life) -> GaveUp:
        path = self._log_of(child)
        lines = life.report.lines[-LAST_LOG_LINES:] if life.report else read_last_lines(path, LAST_LOG_LINES)
        if life.exit_code == USAGE_ERROR:
            marked = [n for n, line in enumerate(lines) if line.startswith(ERROR_MARK)]
            sentence = "\n".join(lines[marked[-1] :]).removeprefix(ERROR_MARK) if marked else "\n".join(lines)
            return Misused(f"{child.name}: {sentence}")
        self._note_error(child, life)
        why = f" ({life.error})" if life.error else ""
        shown = "\n".join(f"  {line}" for line in lines) or "  (nothing)"
        return GaveUp(
            f"{child.name} died {life.starts} {inflect(life.starts, 'time')}, the last time with exit code "
            f"{life.exit_code}{why}, and is not started again. Its log {path} {life.log_verb}:\n{shown}"
        )

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self._sample_all()
        self._sample_all()

    def _sample_all(self) -> None:
        pids = {name: state.pid for name, state in self.states().items()}
        if self._forks is not None:
            pids["forks"] = self._forks.pid
        for name, pid in {**pids, **self._other_pids()}.items():
            if pid is not None:
                self._cpu.sample(name, pid)
