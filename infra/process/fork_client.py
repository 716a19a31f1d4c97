"""The launcher's side of the fork server: starts it, lets it fork components, and ends it."""

from __future__ import annotations

import ctypes
import json
import os
import queue
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headrace.infra.process.child_process import PYTHON, ChildCommand, spawn
from headrace.infra.process.fork_server import CannotFork, ForkRequest

IMPORT_S = 90.0
"""Most seconds for imports, on a busy machine."""
FORK_S = 10.0
PR_SET_CHILD_SUBREAPER = 36
"""Option of prctl(2)."""


class ForkedProcess:
    """A component that the fork server forked; it is a child of this process, like a program started here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self) -> int:
        """Wait for its end; return its exit code, negative for a signal."""
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


class ForkServer:
    """One fork server, usable from any number of threads. The constructor starts nothing.

    If it dies it is not restarted: later components are started as separate programs.

    Args:
        environment: Environment of the server, and so of every fork.
        log: File for its output.
    """

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self._environment = environment
        self._log = log
        self._lock = threading.Lock()
        """Guards requests: only one at a time."""
        self._line: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None
        self._waiter: threading.Thread | None = None
        self._imported: set[str] = set()
        self._preparation: ForkRequest | None = None
        """Preparations to send before the next component."""

    @property
    def pid(self) -> int | None:
        """The process id, while it runs."""
        return self._server.pid if self._server is not None and self._server.returncode is None else None

    def start(self) -> None:
        """Start the process; it imports nothing before the first request. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = [*PYTHON, "-m", "headrace.infra.process.fork_server", str(os.getpid())]
            self._spawn(ChildCommand(command, self._environment, self._log, stdin=theirs.fileno()))
        self._line = ours

    def _spawn(self, command: ChildCommand) -> None:
        """Start it from a thread that waits for it, as `spawn` requires, so that it is reaped when it ends."""
        spawned: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()

        def spawn_and_wait() -> None:
            try:
                server = spawn(command)
            except OSError as error:
                spawned.put(error)
                return
            spawned.put(server)
            server.wait()

        self._waiter = threading.Thread(target=spawn_and_wait, name="fork-server-parent", daemon=True)
        self._waiter.start()
        server = spawned.get()
        if isinstance(server, OSError):
            raise server
        self._server = server

    def import_early(self, names: Sequence[str]) -> None:
        """Let the fork server import modules, without waiting. If an import fails, the first `fork` fails."""

        def import_them() -> None:
            with self._lock, suppress(CannotFork):
                self._import_missing(names)

        threading.Thread(target=import_them, name="fork-server-imports", daemon=True).start()

    def prepare(self, environment: Mapping[str, str], log: Path) -> None:
        """Add variables and change the log file before the next component is forked; does not wait.

        Modules imported earlier have already read their variables.
        """
        self._preparation = ForkRequest(environment=environment, log=str(log))

    def fork(self, request: ForkRequest) -> ForkedProcess:
        """Fork a process as requested. Raises CannotFork if it did not begin."""
        with self._lock:
            self._send_preparation()
            self._import_missing(request.imports)
            with _adopt_orphans():
                reply = self._ask(request, FORK_S)
        if "error" in reply:
            if "pid" in reply:
                with suppress(ChildProcessError):
                    os.waitpid(reply["pid"], 0)
            raise CannotFork(reply["error"])
        return ForkedProcess(reply["pid"])

    def _send_preparation(self) -> None:
        preparation, self._preparation = self._preparation, None
        if preparation is None:
            return
        reply = self._ask(preparation, FORK_S)
        if "error" in reply:
            self._kill_and_disconnect()
            raise CannotFork(reply["error"])

    def _import_missing(self, names: Sequence[str]) -> None:
        missing = [name for name in names if name not in self._imported]
        if not missing:
            return
        reply = self._ask(ForkRequest(missing), IMPORT_S)
        if "error" in reply:  # the modules stay imported, so it would refuse every request
            self._kill_and_disconnect()
            raise CannotFork(reply["error"])
        self._imported.update(missing)

    def _ask(self, request: ForkRequest, patience_s: float) -> dict[str, Any]:
        """Return the answer to a request. Raises CannotFork without an answer, and ends the server."""
        if self._line is None:
            raise CannotFork("there is no fork server")
        try:
            self._line.settimeout(patience_s)
            self._line.sendall(request.line())
            reply = _read_line(self._line)
            why = "" if reply else "the fork server has ended"
        except TimeoutError:
            # The line is closed, so a fork that answers later cannot report, and ends before it begins.
            self._line.shutdown(socket.SHUT_RD)
            reply, why = _read_line(self._line), f"the fork server did not answer within {patience_s:g} s"
        except OSError as error:
            reply, why = b"", f"the fork server does not listen: {error}"
        if why:
            self._kill_and_disconnect()
        if not reply:
            raise CannotFork(why)
        answer: dict[str, Any] = json.loads(reply)
        return answer

    def _kill_and_disconnect(self) -> None:
        self._kill()
        if self._line is not None:
            self._line.close()
            self._line = None

    def _kill(self) -> None:
        if self._server is not None and self._waiter is not None:
            self._server.kill()
            self._waiter.join()

    def stop(self) -> None:
        """End the process, even during a request, which then fails. Nothing is lost."""
        self._kill()
        with self._lock:
            self._kill_and_disconnect()


def _read_line(line: socket.socket) -> bytes:
    """Return the next line, or a partial line if the other end has hung up. Raises OSError."""
    reply = b""
    while not reply.endswith(b"\n"):
        part = line.recv(4096)
        if not part:
            break
        reply += part
    return reply


@contextmanager
def _adopt_orphans() -> Iterator[None]:
    """Let the kernel give orphaned descendants to this process as children, during the block.

    After the block, leftovers of a dead component go to init, which reaps them.
    """
    _set_subreaper(on=True)
    try:
        yield
    finally:
        _set_subreaper(on=False)


def _set_subreaper(*, on: bool) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)
