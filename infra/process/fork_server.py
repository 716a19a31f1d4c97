"""The fork server of `headrace up`: a process that imports what is slow to import, once, and forks every component.

Importing torch and transformers costs each process some seconds of a core, and a component that was killed waits for
them before it works again. A fork has them at once, and shares their memory until it writes to it.

Forking is safe in a process of one thread alone: locks that another thread held would be held for ever in the child.
So nothing here starts a thread, a Kafka client or a CUDA context, threads are counted before every fork, and with more
than one it refuses: the launcher then starts the component as a program of its own.

A component is the launcher's own child, not this process's: it is forked twice, and what is between ends at once, so
that the kernel gives it to the launcher, which asked for that (PR_SET_CHILD_SUBREAPER). So the launcher waits for it,
sees its exit code and kills it as one that it started itself; the kernel kills it when the launcher dies; and this
process may be killed at any time without a component noticing. `fork_client.py` is the launcher's side.
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
    """Why a component has to be started in another way."""


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """What the launcher asks for: a component, or no more than what it will need."""

    imports: Sequence[str] = ()
    """Modules of which everything is imported before anything is forked."""
    name: str = ""
    """What to call the process; empty for what only prepares this one."""
    command: Sequence[str] = ()
    """`python … -m module words …`: what the component is, as the list of processes shows it."""
    log: str = ""
    """Takes standard output and standard error."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that are set before the imports, here and so in every later fork."""

    def line(self) -> bytes:
        """Return the request as one line."""
        return json.dumps(asdict(self)).encode() + b"\n"


def main() -> None:
    """Serve the launcher, whose pid is the argument, at the other end of standard input; in a fork, be the component.

    The component begins here, and not where it was forked, so that it ends as any program does.
    """
    setproctitle.getproctitle()  # it finds the memory of the title as long as no variable has been set
    launcher = socket.socket(fileno=0)
    request = serve(launcher, int(sys.argv[1]))
    if request is None:
        os._exit(0)  # taking apart all that was imported would take a while
    module, *words = request.command[request.command.index("-m") + 1 :]
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def serve(launcher: socket.socket, launcher_pid: int) -> ForkRequest | None:
    """Carry out requests until the launcher is gone. Returns None then, and in every fork its request."""
    gc.disable()  # there is nothing to collect: modules stay
    with launcher.makefile("rb") as requests:
        for line in requests:
            request = ForkRequest(**json.loads(line))
            try:
                os.environ.update(request.environment)
                if request.log and not request.name:
                    log_to(request.log)
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
    become(request, launcher, (launcher_pid, between))
    return request


def answer(launcher: socket.socket, **reply: Any) -> None:
    """Report to the launcher how it went. Raises OSError when it does not listen any more."""
    launcher.sendall(json.dumps(reply).encode() + b"\n")


def log_to(path: str) -> None:
    """Have standard output and standard error go to a file from now on. Raises OSError."""
    said = os.open(path, LOG_FLAGS, 0o666)
    for there in (1, 2):
        os.dup2(said, there)
    os.close(said)


def import_all(names: Sequence[str]) -> None:
    """Import what is not yet imported. Raises CannotFork when that cannot be, or has started a thread."""
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        try:
            importlib.import_module(name)
        except Exception as error:  # the component will tell it better
            raise CannotFork(f"importing {name} failed: {error!r}") from error
    if missing:
        gc.freeze()  # or every collection of a child would look at all this, and copy its pages
    if others := find_other_threads():
        raise CannotFork(f"the imported modules have started threads: {', '.join(others)}")


def find_other_threads(tasks: Path = TASKS) -> list[str]:
    """Return the names of this process's threads but the main one, as the kernel knows them."""
    return [(task / "comm").read_text().strip() for task in tasks.iterdir() if task.name != str(os.getpid())]


def fork_twice(name: str) -> int:
    """Fork a process whose parent ends at once; return the pid of that parent in it, and 0 here.

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


def become(request: ForkRequest, launcher: socket.socket, parents: tuple[int, int]) -> None:
    """Make a fork what a program is that the launcher starts: session, death with the launcher, log, name, randomness.

    Then tell the launcher. A fork that cannot, or to which nobody listens, ends here: nothing of it has begun.
    """
    try:
        await_adoption(*parents)
        os.setsid()
        die_with_parent()
        await_adoption(*parents)  # it may have died before this
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
    """Return when the launcher is this process's parent. Raises CannotFork when another process is."""
    while (parent := os.getppid()) != launcher_pid:
        if parent != between:
            raise CannotFork(f"its parent became process {parent} instead of the launcher")
        time.sleep(ADOPTION_PAUSE_S)


def _seed_random(modules: Mapping[str, Any]) -> None:
    """Give this fork a random state of its own where Python does not: its own `random` reseeds itself in a fork.

    torch begins every process with the same state.
    """
    if "numpy.random" in modules:
        modules["numpy.random"].seed()


if __name__ == "__main__":
    main()
