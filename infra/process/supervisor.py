"""Child processes that are kept running: started together, restarted when they die, stopped together.

One thread per child starts it, waits for it and decides what follows; the thread lives as long as the child, which the
parent-death signal needs.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.process.child_process import ChildCommand, end_all, kill_session, spawn, wait_without_reaping
from headrace.infra.process.cpu_account import CpuAccount
from headrace.infra.process.log_lines import last_lines

FINISHED = 0
USAGE_ERROR = 2
AWAY = os.EX_TEMPFAIL
"""A component ends with this when a server that is away left it stuck: no fault of its own."""
SAMPLE_S = 1.0
LAST_LINES = 12
ERROR_MARK = "error: "
"""What the command line begins an error with."""

log = structlog.get_logger()


class GaveUp(HeadraceError):
    """A component cannot be kept running."""


class Misused(GaveUp, UsageError):
    """A component found that it was asked for something that cannot be."""


@dataclass(frozen=True, slots=True)
class Child:
    """A component process."""

    name: str
    command: Sequence[str]
    torch_processes: int = 0
    """How many processes of it compute: they share the cores."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often, and how soon, a child is started again."""

    most_short_lives: int
    """A child that dies so often in a row, each time soon after its start, is given up."""
    first_pause_s: float = 0.5
    longest_pause_s: float = 10.0
    healthy_after_s: float = 30.0
    """A life of this length makes the next pause the first again."""
    short_life_s: float = 60.0
    """Deaths within this time of the start count, one after the other."""


@dataclass(slots=True)
class _Life:
    """What the supervisor knows of one child."""

    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    exit_code: int | None = None
    state: str = "starting"
    """starting | running | waiting | finished | failed | stopped."""


@dataclass(frozen=True, slots=True)
class ChildState:
    """How a child is doing."""

    state: str
    pid: int | None
    starts: int
    exit_code: int | None
    """Of the newest life that ended; negative for a signal."""


class Supervisor:
    """Keeps children running until they finish, fail for good or are stopped.

    Args:
        children: Whom to run.
        logs: Folder of their logs, `<name>.log` each.
        environment: What every child gets; threads and Python's own switches are set on top.
        patience: When to start again, and when to give up.
        is_over: Whether a child that ends in good order has finished. Before, somebody told it to stop from outside,
            and it is started again.
        also: Names and pids of further processes whose CPU time is to be counted.
    """

    def __init__(
        self,
        children: Sequence[Child],
        logs: Path,
        environment: Mapping[str, str],
        *,
        patience: Patience,
        is_over: Callable[[], bool],
        also: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.children = tuple(children)
        self.logs = logs
        self._environment = child_environment(environment, sum(child.torch_processes for child in children))
        self._patience = patience
        self._run_is_over = is_over
        self._also = also
        self._cpu = CpuAccount()
        self._lives = {child.name: _Life() for child in children}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failures: list[GaveUp] = []
        self._keepers: list[threading.Thread] = []
        self._sampler: threading.Thread | None = None

    def start(self) -> None:
        """Start all children, each in its own thread."""
        self.logs.mkdir(parents=True, exist_ok=True)
        for child in self.children:
            keeper = threading.Thread(target=self._keep, args=(child,), name=f"keep-{child.name}", daemon=True)
            self._keepers.append(keeper)
            keeper.start()
        self._sampler = threading.Thread(target=self._sample, name="cpu-account", daemon=True)
        self._sampler.start()

    def stop(self, timeout_s: float = 8) -> None:
        """End all children: SIGTERM, up to `timeout_s`, SIGKILL. Nothing they started is left when this returns."""
        self._stop.set()
        with self._lock:  # from here on nobody is started
            pids = [life.process.pid for life in self._lives.values() if life.process is not None]
        killed = end_all(pids, timeout_s)
        for keeper in self._keepers:
            keeper.join()
        if self._sampler is not None:
            self._sampler.join()
        if killed:
            log.warning("children.killed", count=len(killed), after_s=timeout_s)

    def raise_failure(self) -> None:
        """Raise GaveUp when a child cannot be kept running."""
        if self._failures:
            raise self._failures[0]

    def states(self) -> dict[str, ChildState]:
        """Return how every child is doing."""
        with self._lock:
            return {
                name: ChildState(life.state, life.process.pid if life.process else None, life.starts, life.exit_code)
                for name, life in self._lives.items()
            }

    def cpu_seconds(self) -> dict[str, dict[str, float]]:
        """Return by name the CPU seconds of `process` and, as a part of them, of `librdkafka`."""
        return self._cpu.seconds()

    def _keep(self, child: Child) -> None:
        """Run a child, life after life."""
        life = self._lives[child.name]
        pause = self._patience.first_pause_s
        short_lives = 0
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._live(child, life)
            except OSError as error:
                self._failures.append(GaveUp(f"{child.name} cannot be started ({child.command[0]}): {error}"))
                life.state = "failed"
                return
            lived = time.monotonic() - began
            if life.exit_code != AWAY:
                short_lives = short_lives + 1 if lived < self._patience.short_life_s else 0
            if self._is_over(child, life, short_lives):
                return
            if lived >= self._patience.healthy_after_s:
                pause = self._patience.first_pause_s
            life.state = "waiting"
            log.warning("child.died", child=child.name, exit_code=life.exit_code, again_in_s=pause)
            self._stop.wait(pause)
            if self._is_over(child, life, short_lives):  # a worker may see the end of the run before we do
                return
            pause = min(pause * 2, self._patience.longest_pause_s)
        life.state = "stopped"

    def _is_over(self, child: Child, life: _Life, short_lives: int) -> bool:
        """Tell whether a child whose life ended is not to be started again; note why."""
        if self._stop.is_set():
            life.state = "stopped"
        elif life.exit_code == FINISHED and self._run_is_over():
            life.state = "finished"
        elif life.exit_code == USAGE_ERROR or short_lives >= self._patience.most_short_lives:
            self._failures.append(self._give_up(child, life))
            life.state = "failed"  # last: who sees it asks for the reason
        else:
            return False
        return True

    def _live(self, child: Child, life: _Life) -> None:
        """Run a child once. Raises OSError when it cannot be started."""
        command = ChildCommand(child.command, self._environment, self.logs / f"{child.name}.log")
        with self._lock:
            if self._stop.is_set():
                return
            process = spawn(command)
            life.process, life.state = process, "running"
            life.starts += 1
        wait_without_reaping(process.pid)
        self._cpu.sample(child.name, process.pid)
        kill_session(process.pid)  # what it started and left behind
        with self._lock:
            life.exit_code = process.wait()
            life.process = None

    def _give_up(self, child: Child, life: _Life) -> GaveUp:
        path = self.logs / f"{child.name}.log"
        lines = last_lines(path, LAST_LINES)
        if life.exit_code == USAGE_ERROR:
            told = [n for n, line in enumerate(lines) if line.startswith(ERROR_MARK)]
            sentence = "\n".join(lines[told[-1] :]).removeprefix(ERROR_MARK) if told else "\n".join(lines)
            return Misused(f"{child.name}: {sentence}")
        shown = "\n".join(f"  {line}" for line in lines)
        return GaveUp(
            f"{child.name} died {life.starts} times, the last time with exit code {life.exit_code}, and is not started "
            f"again. Its log {path} ends with:\n{shown or '  (nothing)'}"
        )

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self._sample_all()
        self._sample_all()

    def _sample_all(self) -> None:
        pids = {name: state.pid for name, state in self.states().items()}
        for name, pid in {**pids, **self._also()}.items():
            if pid is not None:
                self._cpu.sample(name, pid)


def child_environment(environment: Mapping[str, str], torch_processes: int, cores: int | None = None) -> dict[str, str]:
    """Return the environment of components: threads are set before any import, and bytecode is kept.

    Two torch processes with two threads each on two cores are six times slower than with one each: OpenMP's threads
    spin while they wait. Set only where the user has not set them.
    """
    count = cores or len(os.sched_getaffinity(0))
    threads = str(max(1, count // max(1, torch_processes)))
    ours = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    kept = {key: value for key, value in environment.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**ours, **kept}
