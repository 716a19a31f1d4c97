"""The fork server of `headrace up`: a process that does slow imports once, and forks every component.

Importing torch and transformers costs each process some CPU seconds, also when a killed component is restarted. A fork
has these modules at once, and shares their memory until it writes to it.

Forking is safe only in a process with one thread: locks held by another thread would stay locked in the child. So
nothing here starts a thread, a Kafka client or a CUDA context. Threads are counted before every fork; with more than
one the server refuses, and the launcher starts the component as a separate program.

A component becomes a child of the launcher, not of this process. It is forked twice, and the process in between ends at
once, so the kernel gives the component to the launcher, which is a subreaper (PR_SET_CHILD_SUBREAPER). So the launcher
can wait for it, read its exit code and kill it; the kernel kills it when the launcher dies; and this process may be
killed at any time without effect on components. `fork_client.py` is the launcher's side.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import setproctitle

from headrace.infra.process.child_process import die_with_parent

ADOPTION_PAUSE_S = 0.0005
TASKS = Path("/proc/self/task")
LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class CannotFork(Exception):
    """A component cannot be forked, and must be started as a program; the message says why."""


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """A request of the launcher: to fork a component, or only to prepare for it."""

    imports: Sequence[str] = ()
    """Modules to import before the fork."""
    name: str = ""
    """Name of the process; empty for a request that only prepares the server."""
    command: Sequence[str] = ()
    """`python … -m module words …`: the component's command, as shown in the list of processes."""
    log: str = ""
    """File for standard output and standard error."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables to set before the imports, here and so in every later fork."""

    def line(self) -> bytes:
        """Return the request as one line."""
        return json.dumps(asdict(self)).encode() + b"\n"


def main() -> None:
    """Serve the launcher (its pid is the argument) over standard input; in a fork, run the component.

    The component begins here, not at the place of the fork, so that it ends like any program.
    """
    setproctitle.getproctitle()  # it can find the title's memory only before variables are set
    launcher = socket.socket(fileno=0)
    request = serve(launcher, int(sys.argv[1]))
    if request is None:
        os._exit(0)  # a normal exit would take time to tear down the imported modules
    module, *words = request.command[request.command.index("-m") + 1 :]
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def serve(launcher: socket.socket, launcher_pid: int) -> ForkRequest | None:
    """Serve requests until the launcher is gone; then return None. In each fork return its request."""
    gc.disable()  # there is nothing to collect: modules stay
    with launcher.makefile("rb") as requests:
        for line in requests:
            request = ForkRequest(**json.loads(line))
            try:
                os.environ.update(request.environment)
                if request.log and not request.name:
                    redirect_output(request.log)
                import_all(request.imports)
                if request.name and (between := fork_twice(request.name)):
                    break
            except (CannotFork, OSError) as error:
                answer(launcher, error=str(error))
            else:
                if not request.name:
                    answer(launcher)
        else:
            return None
    set_up_fork(request, launcher, (launcher_pid, between))
    return request


def answer(launcher: socket.socket, **reply: Any) -> None:
    """Report the result to the launcher. Raises OSError if it no longer listens."""
    launcher.sendall(json.dumps(reply).encode() + b"\n")


def redirect_output(path: str) -> None:
    """Redirect standard output and standard error to a file. Raises OSError."""
    said = os.open(path, LOG_FLAGS, 0o666)
    for there in (1, 2):
        os.dup2(said, there)
    os.close(said)


def import_all(names: Sequence[str]) -> None:
    """Import missing modules. Raises CannotFork if an import fails or has started a thread."""
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        try:
            importlib.import_module(name)
        except Exception as error:  # the component itself will report it better
            raise CannotFork(f"importing {name} failed: {error!r}") from error
    if missing:
        gc.freeze()  # otherwise each child's garbage collection would touch, and so copy, all these pages
    if others := find_other_threads():
        raise CannotFork(f"the imported modules have started threads: {', '.join(others)}")


def find_other_threads(tasks: Path = TASKS) -> list[str]:
    """Return the kernel's names of this process's threads, except the main thread."""
    return [(task / "comm").read_text().strip() for task in tasks.iterdir() if task.name != str(os.getpid())]


def fork_twice(name: str) -> int:
    """Fork a process whose parent ends at once; return 0 here, and in the new process the pid of that parent.

    Raises CannotFork and OSError.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if between := os.fork():
        _, status = os.waitpid(between, 0)
        if status:
            raise CannotFork(f"forking {name} failed")
        return 0
    between = os.getpid()
    try:
        child = os.fork()
    except OSError:
        os._exit(1)
    if child:
        os._exit(0)
    return between


def set_up_fork(request: ForkRequest, launcher: socket.socket, parents: tuple[int, int]) -> None:
    """Set up a fork like a program started by the launcher: session, parent-death signal, log, name, random state.

    Then report to the launcher. If this fails or nobody listens, the fork ends here, before its component begins.
    """
    try:
        await_adoption(*parents)
        os.setsid()
        die_with_parent()
        await_adoption(*parents)  # the parent may have died before this
        said = os.open(request.log, LOG_FLAGS, 0o666)
        nothing = os.open(os.devnull, os.O_RDONLY)
        answer(launcher, pid=os.getpid())
    except (CannotFork, OSError) as error:
        with suppress(OSError):
            answer(launcher, pid=os.getpid(), error=str(error))
        os._exit(1)
    launcher.detach()
    for here, there in ((nothing, 0), (said, 1), (said, 2)):
        os.dup2(here, there)
    os.close(nothing)
    os.close(said)
    setproctitle.setproctitle(" ".join(request.command))
    setproctitle.setthreadtitle(request.name)
    _seed_random(sys.modules)
    gc.enable()


def await_adoption(launcher_pid: int, between: int) -> None:
    """Wait until the launcher is this process's parent. Raises CannotFork if another process is."""
    while (parent := os.getppid()) != launcher_pid:
        if parent != between:
            raise CannotFork(f"the parent of the forked process is process {parent} instead of the launcher")
        time.sleep(ADOPTION_PAUSE_S)


def _seed_random(modules: Mapping[str, Any]) -> None:
    """Give this fork a new random state in libraries that do not reseed after a fork, as Python's `random` does.

    torch starts every process with the same state, so it needs none.
    """
    if "numpy.random" in modules:
        modules["numpy.random"].seed()


if __name__ == "__main__":
    main()
