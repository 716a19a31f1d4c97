"""A box of Linux namespaces, with a first process that runs its commands."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Any, Self

from headrace.envs.sandbox.contract import BoxFailed, Result, TransferRefused
from headrace.envs.sandbox.file_stream import BadStream, TooLarge, pack, read_entries, unpack
from headrace.envs.sandbox.frames import END, ENDED, FRAME, LARGEST_FRAME, STDERR, STDOUT, encode_request
from headrace.envs.sandbox.inside.tree import HOME, SYSTEM
from headrace.envs.sandbox.limits import MIB, Limits
from headrace.envs.sandbox.memory_group import MemoryGroup, make_memory_group
from headrace.envs.sandbox.namespaces import build_command, choose_users, find_programs, find_python
from headrace.infra.errors import UsageError

START_S, STOP_S, GRACE_S = 20.0, 5.0, 10.0
"""Seconds for a box to start, to end by itself, and to answer after a command's time is over."""
FILES_S = 60.0
FAULTS_OF_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
"""Errors of this machine's folder; others come from the names in a download."""
HEADER_BYTES = 1 << 14
"""Room for names beside the contents of a download, and more."""


class NamespaceBox:
    """A box of Linux namespaces. An async context manager: it starts at the block's begin, and is gone after its end.

    Commands run one at a time. A command whose caller is cancelled ends the box.

    Args:
        limits: What the box may use.
        backend: Program that makes the namespaces, `bubblewrap` or `unshare`.
        folders: Absolute paths of further writable folders, empty at first.
        read_only: Absolute path in the box to a file or folder outside that is copied there before anything runs;
            nothing in the box can change it.
        env: Environment variables of all commands; they have no others but PATH, HOME, USER, LANG and TMPDIR.
    """

    def __init__(
        self,
        *,
        backend: str,
        limits: Limits | None = None,
        folders: Sequence[str] = (),
        read_only: Mapping[str, Path] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._limits, self._backend = limits or Limits(), backend
        self._folders, self._read_only = list(folders), dict(read_only or {})
        for path in (*self._folders, *self._read_only):
            check_new_folder(path)
        self._env = {**_make_environment(), **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._group: MemoryGroup | None = None
        self._errors: IO[bytes] | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._turn = asyncio.Lock()

    @property
    def limits(self) -> Limits:
        """Return what the box may use."""
        return self._limits

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Make the box. Raises BoxFailed, and UsageError for `read_only` that is not there or too large."""
        packed = {path: await self._pack(source) for path, source in self._read_only.items()}
        try:
            ours = self._start_first_process()
            self._reader, self._writer = await asyncio.open_connection(sock=ours, limit=4 * LARGEST_FRAME)
            async with asyncio.timeout(START_S):
                answer = await self._ask(self._make_plan(packed), b"".join(packed.values()))
        except BaseException as error:
            await self._give_up(f"cannot start with {self._backend}", error)
            raise
        if answer:
            await self.stop()
            raise BoxFailed(f"a box cannot start with {self._backend}: {answer.decode(errors='replace')}")

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes = b"",
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> Result:
        """Run a command, a string by a shell, and return what it did. Raises BoxFailed, and UsageError for its words.

        What it left running goes on until the box ends. If the time is over, all that runs in the box is killed.
        """
        timeout_s = self._limits.wall_s if timeout_s is None else timeout_s
        if not 0 < timeout_s <= self._limits.wall_s:
            raise UsageError(
                f"timeout_s must be above 0 and at most the limit wall_s, {self._limits.wall_s}; got {timeout_s}"
            )
        if not command or not (isinstance(command, str) or all(isinstance(word, str) for word in command)):
            raise UsageError(f"a command must be a string, or a list of strings; got {command!r}")
        begin = time.monotonic()
        kept = self._limits.output_kb * 1024
        request = {
            "shell": command if isinstance(command, str) else None,
            "argv": None if isinstance(command, str) else list(command),
            "env": {**self._env, **(env or {})},
            "cwd": cwd or HOME,
        }
        stdin = stdin.encode(errors="replace") if isinstance(stdin, str) else stdin
        stdout, stderr, end = await self._command(request, stdin, timeout_s, (kept, kept))
        return Result(
            bytes(stdout).decode(errors="replace"),
            bytes(stderr).decode(errors="replace"),
            wall_s=time.monotonic() - begin,
            **end,
        )

    async def upload(self, source: Path, target: str) -> None:
        """Copy a file, or what is in a folder, to a path of the box.

        Raises TransferRefused or BoxFailed, and UsageError for the source.
        """
        stream = await self._pack(source)
        request = {"own": "unpack", "path": check_path(target), "cwd": "/"}
        _, stderr, end = await self._command(request, stream, FILES_S, (0, HEADER_BYTES))
        if end["return_code"]:
            raise TransferRefused(f"cannot copy {source} to {target} in a box: {_describe_end(bytes(stderr), end)}")

    async def download(self, source: str, target: Path) -> list[str]:
        """Copy a file or folder of the box to a path that is not there yet; return the names that were left out.

        Raises TransferRefused or BoxFailed, and UsageError for the target.
        """
        _check_is_new(target)
        stream = await self._take_out(source)
        try:
            return await asyncio.to_thread(unpack, read_entries(stream, self._limits.most_files), str(target))
        except OSError as error:
            if error.errno in FAULTS_OF_MACHINE:
                raise BoxFailed(f"cannot write {source} of a box to {target}: {error}") from error
            raise TransferRefused(f"cannot take {source} out of a box: {error}") from error

    async def _take_out(self, source: str) -> bytes:
        """Return a file or folder of the box as a checked stream. Raises TransferRefused or BoxFailed."""
        most = self._limits.disk_mb * MIB + self._limits.most_files * HEADER_BYTES // 16
        request = {"own": "pack", "path": check_path(source), "cwd": "/"}
        stdout, stderr, end = await self._command(request, b"", FILES_S, (most, HEADER_BYTES))
        if end["return_code"] or end["stdout_truncated"]:
            raise TransferRefused(f"cannot take {source} out of a box: {_describe_end(bytes(stderr), end)}")
        stream = bytes(stdout)
        try:
            for _ in read_entries(stream, self._limits.most_files):
                pass
        except (BadStream, TooLarge) as error:
            raise TransferRefused(f"cannot take {source} out of a box: {error}") from error
        return stream

    async def stop(self) -> None:
        """End all processes of the box, and delete its files. Does nothing the second time."""
        process, self._process = self._process, None
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None
        if process is not None:
            ended = asyncio.ensure_future(asyncio.to_thread(process.wait))
            await asyncio.wait({ended}, timeout=STOP_S)
            if not ended.done():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            await ended
        if self._group is not None:
            self._group.remove()
            self._group = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _start_first_process(self) -> socket.socket:
        """Start it, and return the socket to it. Raises OSError."""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        self._group = make_memory_group(self._limits)
        ours, theirs = socket.socketpair()
        try:
            command = [*_join_group(self._group), *build_command(self._backend)]
            self._process = _start_process(command, theirs, self._errors)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def _make_plan(self, packed: Mapping[str, bytes]) -> dict[str, Any]:
        """Return what the first process needs to know to build the box."""
        users = choose_users()
        return {
            "disk_bytes": self._limits.disk_mb * MIB,
            "files": self._limits.most_files,
            "programs": find_programs(),
            "folders": self._folders,
            "read_only": [(path, len(content)) for path, content in packed.items()],
            "init_uid": users[0] if users else None,
            "uid": users[1] if users else None,
            "is_memory_counted": self._group is not None,
        }

    async def _pack(self, source: Path) -> bytes:
        return await asyncio.to_thread(_pack_outside, source, self._limits)

    async def _command(
        self, request: dict[str, Any], data: bytes, timeout_s: float, most: tuple[int, int]
    ) -> tuple[bytearray, bytearray, dict[str, Any]]:
        said = {
            **request,
            "timeout_s": timeout_s,
            "most_stdout": most[0],
            "most_stderr": most[1],
            "files": self._limits.most_files,
            "limits": {} if "own" in request else _list_process_limits(self._limits),
        }
        stdout, stderr = bytearray(), bytearray()
        async with self._turn:
            if self._process is None:
                raise BoxFailed("the box does not run: it was not started, or it has ended")
            try:
                async with asyncio.timeout(timeout_s + GRACE_S):
                    end = await self._ask(said, data, {STDOUT: (stdout, most[0]), STDERR: (stderr, most[1])})
                    return stdout, stderr, _read_end(end)
            except BaseException as error:
                await self._give_up("ended by itself", error)
                raise

    async def _ask(
        self, said: dict[str, Any], data: bytes = b"", outputs: Mapping[int, tuple[bytearray, int]] | None = None
    ) -> bytes:
        """Send a request and return what stands at its end; what comes before is added to the outputs."""
        assert self._reader is not None  # noqa: S101 - set by `start`
        assert self._writer is not None  # noqa: S101
        self._writer.write(encode_request(said, data))
        await self._writer.drain()
        while True:
            kind, length = FRAME.unpack(await self._reader.readexactly(FRAME.size))
            if length > LARGEST_FRAME:
                raise BadStream(f"a frame of {length} bytes")
            content = await self._reader.readexactly(length)
            if kind == END:
                return content
            output, most = (outputs or {})[kind]
            output += content
            if len(output) > most:
                raise BadStream("more output than was asked for")

    def _read_errors(self) -> list[str]:
        if self._errors is None:
            return []
        self._errors.seek(0)
        return self._errors.read(HEADER_BYTES).decode(errors="replace").strip().splitlines()

    async def _give_up(self, what: str, error: BaseException) -> None:
        """Stop the box. Raises BoxFailed in place of an error that says that it is broken."""
        lines = self._read_errors()
        await asyncio.shield(self.stop())
        if isinstance(error, OSError | EOFError | ValueError | KeyError | TypeError | TimeoutError):
            why = lines[-1] if lines else f"{type(error).__name__}: {error}"
            raise BoxFailed(f"a box {what}: {why}") from error


def check_path(path: str) -> str:
    """Return an absolute path in a box. Raises UsageError."""
    parts = PurePosixPath(path).parts
    if not path.startswith("/") or ".." in parts or "\0" in path or len(parts) < 2:
        raise UsageError(f"a path in a box must be absolute, without `..`, and not `/`; got {path!r}")
    return str(PurePosixPath(path))


def check_new_folder(path: str) -> None:
    """Raise UsageError for a folder that a box cannot have besides the system's."""
    if PurePosixPath(check_path(path)).parts[1] in {*SYSTEM, "etc", "proc", "dev", "sys"}:
        raise UsageError(f"a box cannot have the folder {path}: the system is read-only there")


def _make_environment() -> dict[str, str]:
    path = dict.fromkeys([str(Path(find_python()).parent), "/usr/local/bin", "/usr/bin", "/bin"])
    return {"PATH": ":".join(path), "HOME": HOME, "USER": "user", "LANG": "C.UTF-8", "TMPDIR": "/tmp"}  # noqa: S108


def _join_group(group: MemoryGroup | None) -> list[str]:
    """Return the words that start a command in a cgroup."""
    return [] if group is None else ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(group.members)]


def _start_process(command: list[str], control: socket.socket, errors: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the first process of a box in a process group of its own, without a variable of this process."""
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(
        command, stdin=control.fileno(), stdout=nowhere, stderr=errors, env={}, cwd="/", start_new_session=True
    )


def _check_is_new(target: Path) -> None:
    if os.path.lexists(target):
        raise UsageError(f"{target} is there already: download to a new path")


def _list_process_limits(limits: Limits) -> dict[str, int]:
    return {
        "RLIMIT_CPU": limits.cpu_s,
        "RLIMIT_AS": limits.memory_mb * MIB,
        "RLIMIT_FSIZE": limits.file_mb * MIB,
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_NOFILE": 1024,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 64 * 1024,
    }


def _pack_outside(source: Path, limits: Limits) -> bytes:
    """Return a file or folder of this machine as a stream. Raises UsageError."""
    try:
        return b"".join(pack(str(source), limits.disk_mb * MIB, limits.most_files))
    except OSError as error:
        raise UsageError(f"cannot copy {source} into a box: {error}") from error
    except TooLarge as error:
        raise UsageError(
            f"cannot copy {source} into a box: {error}; the limit is disk_mb = {limits.disk_mb}"
        ) from error


def _read_end(end: bytes) -> dict[str, Any]:
    """Return what stands at a command's end. Raises BadStream."""
    if len(end) != ENDED.size:
        raise BadStream(f"an end of {len(end)} bytes")
    code, timed_out, stdout_truncated, stderr_truncated = ENDED.unpack(end)
    return {
        "return_code": code,
        "timed_out": timed_out,
        "stdout_truncated": stdout_truncated,
        "stderr_truncated": stderr_truncated,
    }


def _describe_end(stderr: bytes, end: dict[str, Any]) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    if end["timed_out"]:
        return "it takes too long"
    if end["stdout_truncated"]:
        return "it is too large"
    return lines[-1] if lines else f"exit code {end['return_code']}"
