"""The life of an embedded server: claim its folder and ports, start, wait until it answers, stop.

Each folder belongs to one server. It holds `owner.lock` (locked while a Headrace process owns the folder),
`server.json` (the running process), `ports.json` (drawn once, kept over restarts), the data and the logs. The server
ends with its owner: it gets SIGTERM at its parent's death (Linux); if that fails, the next owner of the folder finds
the leftover process by `server.json` and stops it.

ServerError
├── FolderTaken      another process owns this folder now
├── PortTaken        another process listens on a saved port of this folder
└── ServerFailed     the server exited or never answered; the message ends with the last lines of its log
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import psutil
import structlog

from headrace.infra.atomic_files import write_atomically
from headrace.infra.embedded.loopback_ports import draw_port, find_port_user, hold_port
from headrace.infra.environment import server_environment
from headrace.infra.errors import HeadraceError
from headrace.infra.file_locks import open_locked
from headrace.infra.process.child_process import (
    EXIT_POLL_S,
    ChildCommand,
    has_ended,
    kill_session,
    spawn_from_own_thread,
)
from headrace.infra.process.log_lines import read_lines

PROBE_INTERVAL_S = 0.03
LEFTOVER_STOP_S = 15.0

_log = structlog.get_logger()


class ServerError(HeadraceError):
    """An embedded server cannot run."""


class FolderTaken(ServerError):
    """Another process owns the server's folder now."""


class PortTaken(ServerError):
    """Another process uses a saved port of the server's folder."""


class ServerFailed(ServerError):
    """The server exited, or did not answer in time."""


_ERRORS = (" ERROR ", " FATAL ", "Caused by: ", "Exception: ")


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """How to run a server: its command (program first, by path), environment, and the logs with its errors."""

    command: Sequence[str]
    logs: tuple[Path, ...]
    environment: Mapping[str, str] = field(default_factory=server_environment, repr=False)


class ServerProcess(ABC):
    """A server on loopback as a child process; subclasses give the command and check that it answers.

    `start` may be called again after the process died or was stopped: same folder, same ports. Constructors touch
    nothing. All methods raise `ServerError`.
    """

    what: ClassVar[str]
    """Name of the server in errors."""
    port_names: ClassVar[tuple[str, ...]]

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._owner: int | None = None  # descriptor of owner.lock
        self._ports: dict[str, int] = {}
        self._reserved: list[socket.socket] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Lock()
        """Any thread may stop it, also while another one starts it."""
        self._claiming = threading.RLock()
        """Folder and ports change only under it."""
        self._kill_at = math.inf
        """The earliest deadline of the stops since its last start: the one under way keeps to it, too."""

    @abstractmethod
    def _command(self) -> ServerCommand:
        """Write the server's files and return its command; the folder and ports are already owned."""

    @abstractmethod
    def _is_answering(self) -> bool:
        """Return whether the server answers requests; take a few seconds at most, and return False on any failure."""

    def _clean_up(self, *, is_clean_end: bool) -> None:  # noqa: B027 - a hook that most servers do not need
        """Clean up after the process has ended; `is_clean_end` if it ended by SIGTERM."""

    @property
    def pid(self) -> int | None:
        """Process id while the server runs, else None; a read of it reaps no ended process."""
        process = self._process
        is_running = process is not None and process.returncode is None and not has_ended(process.pid)
        return process.pid if process is not None and is_running else None

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.pid is not None

    def port(self, name: str) -> int:
        """Return the port of that name; known from `claim` on."""
        if name not in self._ports:
            raise ServerError(f"the {self.what} in {self.folder} has no ports yet: call claim() or start() first")
        return self._ports[name]

    def claim(self) -> Self:
        """Own the folder and its ports without starting the server: then the address is known.

        Raises FolderTaken, PortTaken, or ServerError when the folder cannot be written.
        """
        with self._claiming:
            if self._owner is None:
                self._claim_folder_and_ports()
        return self

    def _claim_folder_and_ports(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._owner = self._lock_folder()
            self._stop_leftover()
            self._ports = self._read_saved_ports() or {}
            self._hold_ports()
        except OSError as error:
            self._release()
            raise ServerError(
                f"the {self.what} cannot use {self.folder}: {error}; this user must be able to write there, and the "
                "disk must have room"
            ) from error
        except BaseException:
            self._release()
            raise

    def start(self, timeout_s: float = 60) -> Self:
        """Start the server unless it is running; return when it answers.

        Raises ServerFailed if it exits or does not answer within `timeout_s` (without time for downloads), and the
        errors of `claim`.
        """
        if self.is_alive():
            return self
        if (dead := self._process) is not None:
            _reap(dead)
        self.claim()
        began, self._kill_at = time.monotonic(), math.inf
        try:
            with self._claiming:
                self._hold_ports()
            launch = self._command()
            log_starts = {log: log.stat().st_size if log.exists() else 0 for log in launch.logs}
            log = self.folder / "stdout.log"
            self._process = started = spawn_from_own_thread(
                ChildCommand(launch.command, launch.environment, log, signal.SIGTERM, self.folder)
            )
            self._write_pid(started.pid)
            self._wait_until_it_answers(time.monotonic() + timeout_s, timeout_s, log_starts)
        except OSError as error:
            self.stop()
            raise ServerFailed(f"the {self.what} in {self.folder} cannot start: {error}") from error
        except BaseException:
            self.stop()
            raise
        self._release_ports()
        _log.info("server.started", server=self.what, pid=self.pid, seconds=round(time.monotonic() - began, 2))
        return self

    def stop(self, timeout_s: float = 30) -> None:
        """Stop the server and release the folder; kill it if SIGTERM does not end it within `timeout_s`.

        Processes of the server that outlive it, as they do when it crashes, are killed.
        """
        began = time.monotonic()
        deadline = began + timeout_s
        self._kill_at = min(self._kill_at, deadline)  # another thread may stop it now, and have more time
        with self._stopping:
            while (process := self._process) is not None:  # another thread may start it again meanwhile
                if not _stop_child(process, lambda: time.monotonic() >= min(deadline, self._kill_at)):
                    waited = f"the {self.what} did not stop within {time.monotonic() - began:.0f} s"
                    why = f"{waited}, so it was killed. The data that it had acknowledged is on the disk"
                    _log.warning("server.killed", server=self.what, pid=process.pid, why=why)
                if self._process is process:
                    self._process = None
                    self._pid_file.unlink(missing_ok=True)
                    self._clean_up(is_clean_end=process.returncode in {0, -signal.SIGTERM, 128 + signal.SIGTERM})
            self._release()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def _a_server(self) -> str:
        return f"{'an' if self.what[0] in 'aeiou' else 'a'} {self.what}"

    @property
    def _pid_file(self) -> Path:
        return self.folder / "server.json"

    def _lock_folder(self) -> int:
        descriptor = open_locked(self.folder / "owner.lock", 0o600)
        if descriptor is None:
            owner = (self.folder / "owner.lock").read_text()
            raise FolderTaken(
                f"{f'process {owner}' if owner else 'another process'} runs {self._a_server} in {self.folder} now: "
                "stop its run first, or give this run another data folder"
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return descriptor

    def _stop_leftover(self) -> None:
        leftover = _find_recorded_process(self._pid_file, self.folder)
        if leftover is None:
            return
        # A server that an earlier run left in this folder is stopped.
        _log.warning(
            "server.leftover",
            detail=f"{self._a_server} (pid {leftover.pid}) of an earlier run still uses {self.folder}: stopping it",
        )
        _stop_other(leftover, LEFTOVER_STOP_S)
        self._pid_file.unlink(missing_ok=True)

    def _write_pid(self, pid: int) -> None:
        with suppress(psutil.NoSuchProcess):  # gone already: the wait for its answer reports it
            record = {"pid": pid, "created": psutil.Process(pid).create_time()}
            write_atomically(self._pid_file, json.dumps(record).encode())

    def _read_saved_ports(self) -> dict[str, int] | None:
        path = self.folder / "ports.json"
        if not path.exists():
            return None
        try:
            ports = json.loads(path.read_bytes())
            return {name: int(ports[name]) for name in self.port_names}
        except (ValueError, KeyError, TypeError) as error:
            raise ServerError(f"{path} cannot be read ({error!r}): delete it, and new ports are chosen") from error

    def _hold_ports(self) -> None:
        """Hold every port (bound, not listening) until the server binds it; draw and save ports the first time."""
        if self._reserved:
            return
        if self._ports:
            for port in self._ports.values():
                self._reserved.append(self._hold_saved_port(port))
            return
        try:
            for _ in self.port_names:
                self._reserved.append(draw_port())
        except OSError as error:
            raise PortTaken(f"the {self.what} in {self.folder} gets no port: {error}") from error
        self._ports = {
            name: reserved.getsockname()[1] for name, reserved in zip(self.port_names, self._reserved, strict=True)
        }
        write_atomically(self.folder / "ports.json", json.dumps(self._ports).encode())

    def _hold_saved_port(self, port: int) -> socket.socket:
        try:
            return hold_port(port)
        except OSError:
            raise PortTaken(
                f"port {port}, saved for the {self.what} in {self.folder}, is used by {find_port_user(port)}: "
                f"end that process, or delete {self.folder / 'ports.json'} to get new ports"
            ) from None

    def _wait_until_it_answers(self, deadline: float, timeout_s: float, log_starts: Mapping[Path, int]) -> None:
        process = self._process
        while process is not None and time.monotonic() < deadline:
            if has_ended(process.pid):
                code = _reap(process)
                raise ServerFailed(
                    f"the {self.what} in {self.folder} exited with code {code} while starting; "
                    f"{_describe_logs(log_starts)}"
                )
            if self._is_answering():
                return
            time.sleep(PROBE_INTERVAL_S)
        raise ServerFailed(
            f"the {self.what} in {self.folder} did not answer within {timeout_s:g} s; {_describe_logs(log_starts)}"
        )

    def _release_ports(self) -> None:
        with self._claiming:
            for reserved in self._reserved:
                reserved.close()
            self._reserved = []

    def _release(self) -> None:
        with self._claiming:
            self._release_ports()
            if self._owner is not None:
                os.close(self._owner)
                self._owner = None


def _stop_child(process: subprocess.Popen[bytes], is_late: Callable[[], bool]) -> bool:
    """Send SIGTERM to a child, wait until it is late, kill its tree; return whether SIGTERM was enough."""
    if process.returncode is not None:  # it was reaped when it failed to start
        return True
    if not has_ended(process.pid):
        with suppress(ProcessLookupError):  # who starts it again has reaped it
            os.kill(process.pid, signal.SIGTERM)
    while not (was_enough := has_ended(process.pid)) and not is_late():
        time.sleep(EXIT_POLL_S)
    if not was_enough:
        _kill_descendants(process.pid)
    _reap(process)
    return was_enough


def _reap(process: subprocess.Popen[bytes]) -> int:
    """Kill a child with its whole session, and reap it; return its exit code.

    A crashed server leaves processes that keep its memory. Until the child is reaped, no other session has its number.
    """
    if process.returncode is None:
        kill_session(process.pid)
    return process.wait()


def _stop_other(process: psutil.Process, timeout_s: float) -> None:
    """Send SIGTERM to a process that is no child, wait, send SIGKILL to it and its descendants."""
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout_s)
    except psutil.TimeoutExpired:
        _kill_descendants(process.pid)
        with suppress(psutil.NoSuchProcess):
            process.kill()
        process.wait()


def _kill_descendants(pid: int) -> None:
    with suppress(psutil.NoSuchProcess):
        for descendant in psutil.Process(pid).children(recursive=True):
            descendant.kill()  # the JVM that writes an AOT cache has a JVM of its own


def _find_recorded_process(pid_file: Path, folder: Path) -> psutil.Process | None:
    """Find the live process that `pid_file` names, if it is still the same one and works in `folder`."""
    try:
        record = json.loads(pid_file.read_bytes())
        process = psutil.Process(int(record["pid"]))
        same = abs(process.create_time() - float(record["created"])) < 5  # seconds: the wall clock may be set
        ours = any(str(folder) in argument for argument in process.cmdline())
    except (OSError, ValueError, KeyError, TypeError, psutil.Error):
        return None
    return process if same and ours else None


def _describe_logs(log_starts: Mapping[Path, int], n_lines: int = 8) -> str:
    """Return the log since the start: the first errors, then the last lines."""
    shown = []
    for log, start in log_starts.items():
        lines = [line for line in read_lines(log, start) if not line.startswith("\tat ")]  # of a Java stack
        if lines:
            errors = [line for line in lines[:-n_lines] if any(word in line for word in _ERRORS)][:4]
            shown.append("\n  ".join([f"{log} ends with:", *errors, *lines[-n_lines:]]))
    return "\n".join(shown) if shown else f"nothing was written to its logs: {', '.join(map(str, log_starts))}"
