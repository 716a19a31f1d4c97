"""Keeps child processes running: starts them together, restarts dead ones, stops them together.

One thread per child starts it, waits for it and decides on a restart; the thread lives as long as the child, as the
parent-death signal requires.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue

import structlog

from headrace.infra.backoff import Backoff
from headrace.infra.environment import END_REPORT_VARIABLE
from headrace.infra.errors import FENCED
from headrace.infra.process.child_life import USAGE_ERROR, Child, ChildState, GaveUp, Life
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
from headrace.infra.process.end_report import read_end
from headrace.infra.process.fork_client import ForkServer
from headrace.infra.process.fork_server import CannotFork, ForkRequest
from headrace.infra.process.patience import Deaths, Patience

FINISHED = 0
SAMPLE_S = 1.0
LEAVE_S = 30.0
"""Seconds that a child has to leave, while the others go on."""

log = structlog.get_logger()


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
        self.logs = logs
        self._environment = build_child_environment(environment, sum(child.torch_processes for child in children))
        self._patience = patience
        self._run_is_over = is_over
        self._progress = progress
        self._other_pids = other_pids
        self._forks = forks
        self._cpu = CpuAccount()
        self._lives = {child.name: Life(child, logs) for child in children}
        self._leaving: list[Life] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failures: list[GaveUp] = []
        self._news: SimpleQueue[str] = SimpleQueue()
        self._keepers: list[threading.Thread] = []
        self._sampler: threading.Thread | None = None

    def start(self) -> None:
        """Start all children in their order, each in its own thread."""
        self.logs.mkdir(parents=True, exist_ok=True)
        self._begin(list(self._lives.values()), {})
        self._sampler = threading.Thread(target=self._sample, name="cpu-account", daemon=True)
        self._sampler.start()

    def _begin(self, lives: Sequence[Life], leaving: Mapping[str, Life]) -> None:
        """Start children one after the other; one whose name still leaves begins when that has ended."""
        turn = threading.Event()
        turn.set()
        for life in lives:
            begun, name = threading.Event(), life.child.name
            turns = [turn, leaving[name].gone] if name in leaving else [turn]
            keeper = threading.Thread(
                target=self._keep_running, args=(life, turns, begun), name=f"keep-{name}", daemon=True
            )
            self._keepers.append(keeper)
            keeper.start()
            turn = begun

    def set_children(self, children: Sequence[Child]) -> None:
        """Start the children that are new, in their order, and end those that are not listed; do not wait for either.

        Listed children that are there already run on. One that leaves gets SIGTERM, and after LEAVE_S SIGKILL; this is
        no death: it is neither restarted nor told.
        """
        listed = {child.name for child in children}
        with self._lock:
            out = [life for name, life in self._lives.items() if name not in listed]
            new = [Life(child, self.logs) for child in children if child.name not in self._lives]
            self._leaving = [*(life for life in self._leaving if not life.gone.is_set()), *out]
            leaving = {life.child.name: life for life in self._leaving}
            self._lives = {name: life for name, life in self._lives.items() if name in listed}
            self._lives |= {life.child.name: life for life in new}
            pids = self._forbid_restarts(out)
        if pids:
            threading.Thread(target=self._end, args=(pids, LEAVE_S), name="leave", daemon=True).start()
        self._begin(new, leaving)

    def _forbid_restarts(self, lives: Sequence[Life]) -> list[int]:
        """Let no child of these start any more; return the processes to end. Call it with the lock held."""
        for life in lives:
            life.stopping.set()
        return [life.process.pid for life in lives if life.process is not None]

    def stop(self, timeout_s: float = 8) -> None:
        """End all children and their descendants: SIGTERM, wait up to `timeout_s`, SIGKILL."""
        self._stop.set()
        with self._lock:
            pids = self._forbid_restarts([*self._lives.values(), *self._leaving])
        if self._forks is not None:
            self._forks.stop()
        self._end(pids, timeout_s)
        for keeper in self._keepers:
            keeper.join()
        if self._sampler is not None:
            self._sampler.join()

    def _end(self, pids: Sequence[int], timeout_s: float) -> None:
        if killed := end_all(pids, timeout_s):
            # Processes that did not stop in time were killed.
            log.warning("children.killed", count=len(killed), after_s=timeout_s)

    def raise_failure(self) -> None:
        """Raise GaveUp if a child cannot be kept running."""
        if self._failures:
            raise self._failures[0]

    def states(self) -> dict[str, ChildState]:
        """Return the state of every child."""
        with self._lock:
            return {name: life.build_state() for name, life in self._lives.items()}

    def cpu_seconds(self) -> dict[str, dict[str, float]]:
        """Return CPU seconds by name: of `process` and, as a part of it, `librdkafka`."""
        return self._cpu.seconds()

    def _keep_running(self, life: Life, turns: Sequence[threading.Event], begun: threading.Event) -> None:
        """Run a child and restart it; begin when it is its turn, and set `begun` when it has begun."""
        for turn in turns:
            turn.wait()
        try:
            self._restart_until_over(life, begun)
        finally:
            begun.set()
            life.gone.set()

    def _restart_until_over(self, life: Life, begun: threading.Event) -> None:
        child = life.child
        backoff = Backoff(self._patience.first_pause_s, self._patience.longest_pause_s)
        deaths = Deaths(self._patience)
        reported: set[str] = set()
        while not life.stopping.is_set():
            began = time.monotonic()
            try:
                self._run_once(life, begun)
            except OSError as error:
                self._failures.append(GaveUp(f"{child.name} cannot be started ({child.command[0]}): {error}"))
                life.state = "failed"
                return
            lived = time.monotonic() - began
            deaths.count(life.exit_code, lived, self._progress())
            if self._conclude_if_over(life, deaths):
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
            self._report(life, reported)
            life.stopping.wait(pause)
            if self._conclude_if_over(life, deaths):  # a worker may see the end of the run before the launcher
                return
        life.state = "stopped"

    def _report(self, life: Life, reported: set[str]) -> None:
        """Queue a report of a death with the last error in the log: for the first death, and for each new error."""
        kind = f"{life.exit_code} {re.sub('[0-9]+', '', life.note_error())}"
        if kind not in reported:
            reported.add(kind)
            self._news.put(life.describe_death())

    def take_news(self) -> list[str]:
        """Return, once, sentences on deaths for people: the first death of a child, and deaths with a new error."""
        found = []
        while not self._news.empty():
            found.append(self._news.get())
        return found

    def _conclude_if_over(self, life: Life, deaths: Deaths) -> bool:
        """Return whether an ended child must not be restarted, and note why."""
        if life.stopping.is_set():
            life.state = "stopped"
        elif life.exit_code == FINISHED and self._run_is_over():
            life.state = "finished"
        elif (life.exit_code == USAGE_ERROR or deaths.has_too_many) and not life.child.is_region_part:
            self._failures.append(life.build_failure())
            life.state = "failed"  # set last, because readers of this state then ask for the reason
        else:
            return False
        return True

    def _run_once(self, life: Life, begun: threading.Event) -> None:
        """Run a child once. Raises OSError if it cannot be started."""
        life.report_file.unlink(missing_ok=True)
        life.log_begin = life.log.stat().st_size if life.log.exists() else 0
        try:
            process = self._start_child(life)
        finally:
            begun.set()
        if process is None:
            return
        with self._lock:
            if life.stopping.is_set():  # it was told to end before it was registered
                kill_session(process.pid)
            life.process, life.state = process, "running"
            life.starts += 1
        wait_without_reaping(process.pid)
        self._cpu.sample(life.child.name, process.pid)
        kill_session(process.pid)  # its leftover processes
        with self._lock:
            life.exit_code = process.wait()
            life.report = read_end(life.report_file) if life.exit_code != FINISHED else None
            if life.report is not None:
                life.exit_code = life.report.exit_code
            life.process = None

    def _start_child(self, life: Life) -> ChildProcess | None:
        """Start a child, by fork if possible; return its process, or None if it must stop. Raises OSError."""
        child = life.child
        if self._forks is not None and child.imports:
            try:
                return self._forks.fork(ForkRequest(child.imports, child.name, child.command, str(life.log)))
            except CannotFork as error:
                if not life.stopping.is_set():
                    # It is started as a new process instead, which is slower.
                    log.warning("child.not_forked", child=child.name, why=str(error))
        environment = {**self._environment, END_REPORT_VARIABLE: str(life.report_file)}
        return None if life.stopping.is_set() else spawn(ChildCommand(child.command, environment, life.log))

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
