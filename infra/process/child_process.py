"""Starts processes that cannot outlive this one, and ends many at once."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

EXIT_POLL_S = 0.02
PYTHON = (sys.executable, "-P")
"""Python with -P: files in the working directory do not hide Python's own modules or installed ones."""
PR_SET_PDEATHSIG = 1
"""Option of prctl(2)."""
DIES_FIRST = "500"
"""Linux, when it looks for what to kill, counts half of all memory on top (proc(5), oom_score_adj)."""

# Runs before the program in its own process. Unlike a preexec_fn it is safe (that may deadlock in a process with
# threads). The signal survives exec.
_DIE_WITH_PARENT = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(sys.argv[1]))  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[2]):
    sys.exit("the parent process died before this process began")
os.execve(sys.argv[3], sys.argv[3:], os.environ)
"""


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def die_first() -> None:
    """Let the kernel kill this process before others when memory runs out (Linux only): it may hold what leaks."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(DIES_FIRST)


class ChildProcess(Protocol):
    """A child of this process, started in any way."""

    @property
    def pid(self) -> int:
        """Its process id, valid until it is waited for."""

    def wait(self) -> int:
        """Wait for its end; return its exit code, negative for a signal."""


@dataclass(frozen=True, slots=True)
class ChildCommand:
    """What to run: program first, by path."""

    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    """Takes standard output and standard error."""
    death_signal: signal.Signals = signal.SIGKILL
    """Signal that the kernel sends at the death of this process."""
    folder: Path | None = None
    """Working directory of the command; None for this process's."""
    stdin: int = subprocess.DEVNULL
    """A file descriptor, or nothing to read."""


def spawn(child: ChildCommand) -> subprocess.Popen[bytes]:
    """Start a process in a new session, so that Ctrl-C reaches only the launcher, which stops the others in order.

    Call it from a thread that lives at least as long as the child: the kernel sends the parent-death signal when the
    *thread* that forked ends. Raises OSError.
    """
    shim = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(int(child.death_signal)), str(os.getpid())]
    with child.log.open("ab") as out:
        return subprocess.Popen(
            [*shim, *child.command],
            cwd=child.folder,
            env=dict(child.environment),
            stdin=child.stdin,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )


def spawn_from_own_thread(child: ChildCommand) -> subprocess.Popen[bytes]:
    """`spawn` from a new thread that lives as long as the child, for a thread that may end sooner. Raises OSError.

    The thread does not reap the child, so that its pid stays valid until the caller has waited for it.
    """
    spawned: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()

    def spawn_and_wait() -> None:
        try:
            process = spawn(child)
        except OSError as error:
            spawned.put(error)
            return
        spawned.put(process)
        wait_without_reaping(process.pid)

    threading.Thread(target=spawn_and_wait, name="child-parent", daemon=True).start()
    process = spawned.get()
    if isinstance(process, OSError):
        raise process
    return process


def wait_without_reaping(pid: int) -> None:
    """Wait until a child has ended, without reaping it, so that its pid and its /proc data stay valid."""
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def has_ended(pid: int) -> bool:
    """Return whether a child has ended, without reaping it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
    except ChildProcessError:
        return True


def end_all(pids: Iterable[int], timeout_s: float) -> list[int]:
    """Send SIGTERM to all, wait up to `timeout_s`, send SIGKILL to their sessions; return the killed pids.

    Half-way the signal is sent again, which makes a component end at once.
    """
    left = list(pids)
    for _ in range(2):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s / 2
        while left and time.monotonic() < deadline:
            left = [pid for pid in left if not has_ended(pid)]
            time.sleep(EXIT_POLL_S)
    for pid in left:
        kill_session(pid)
    return left


def kill_session(pid: int) -> None:
    """Send SIGKILL to a child, which has not been reaped, and to all processes of its session."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    for left in list_session(pid):  # in process groups of their own
        with suppress(ProcessLookupError, PermissionError):
            os.kill(left, signal.SIGKILL)


def list_session(leader: int) -> list[int]:
    """Return the processes whose session a process leads, also after its end; no others, until it is reaped."""
    found = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                found.append(pid)
    return found


def build_child_environment(
    environment: Mapping[str, str], torch_processes: int, cores: int | None = None
) -> dict[str, str]:
    """Return the environment of components: numbers of threads, set before any import, and cached bytecode.

    On two cores, two torch processes with two threads each are six times slower than with one thread each, because
    waiting OpenMP threads spin. Variables set by the user stay unchanged.
    """
    count = cores or len(os.sched_getaffinity(0))
    threads = str(max(1, count // max(1, torch_processes)))
    ours = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": "1",  # of numpy, which starts them when it is imported; torch has its own
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    kept = {key: value for key, value in environment.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**ours, **kept}
