"""A box of Linux namespaces, with a first process that runs its commands."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self

from headrace.envs.sandbox.contract import BoxFailed, Result, TransferRefused
from headrace.envs.sandbox.file_stream import BadStream, TooLarge, pack, read_entries, unpack
from headrace.envs.sandbox.first_process import FirstProcess
from headrace.envs.sandbox.frames import ENDED, STDERR, STDOUT
from headrace.envs.sandbox.hosts import Relay, read_hosts
from headrace.envs.sandbox.inside.tree import HOME, SYSTEM
from headrace.envs.sandbox.limits import MIB, Limits
from headrace.envs.sandbox.namespaces import SANDLOCK, choose_users, find_programs, find_python
from headrace.infra.errors import UsageError

START_S, GRACE_S = 20.0, 10.0
"""Seconds for a box to start, and to answer after a command's time is over."""
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
        backend: Program that makes the namespaces, `bubblewrap` or `unshare`; or `sandlock`, which makes none.
        folders: Absolute paths of further writable folders, empty at first.
        read_only: Absolute path in the box to a file or folder outside that is copied there before anything runs;
            nothing in the box can change it.
        env: Environment variables of all commands; they have no others but PATH, HOME, USER, LANG and TMPDIR.
        hosts: What code in the box can connect to, as `read_hosts` takes it.
    """

    def __init__(
        self,
        *,
        backend: str,
        limits: Limits | None = None,
        folders: Sequence[str] = (),
        read_only: Mapping[str, Path] | None = None,
        env: Mapping[str, str] | None = None,
        hosts: Collection[str] = (),
    ) -> None:
        self._limits, self._backend = limits or Limits(), backend
        self._folders, self._read_only = list(folders), dict(read_only or {})
        for path in (*self._folders, *self._read_only):
            check_new_folder(path)
        self._env = {**_make_environment(), **(env or {})}
        self._targets = read_hosts(hosts)
        if self._targets and backend == SANDLOCK:
            raise UsageError("a box of sandlock reaches no hosts: take a box of namespaces")
        self._first: FirstProcess | None = None
        self._relay: Relay | None = None
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
            relay = self._relay = Relay(self._targets) if self._targets else None
            first = self._first = FirstProcess(self._backend, self._limits, relay.theirs if relay else None)
            async with asyncio.timeout(START_S):
                answer = await first.ask(self._make_plan(packed, first), b"".join(packed.values()))
            if relay and not answer:
                await relay.start()
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
        first, self._first = self._first, None
        relay, self._relay = self._relay, None
        if relay is not None:
            await relay.stop()
        if first is not None:
            await first.stop()

    def _make_plan(self, packed: Mapping[str, bytes], first: FirstProcess) -> dict[str, Any]:
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
            "is_memory_counted": first.is_memory_counted,
            "hosts": [tuple(target) for target in self._targets],
            "memory_bytes": self._limits.memory_mb * MIB,
            "processes": self._limits.processes,
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
            "is_alone": self._backend == SANDLOCK,
        }
        if said["is_alone"]:  # sandlock counts the processes; the kernel would count all those of this user
            said["limits"].pop("RLIMIT_NPROC", None)
        stdout, stderr = bytearray(), bytearray()
        async with self._turn:
            if self._first is None:
                raise BoxFailed("the box does not run: it was not started, or it has ended")
            try:
                async with asyncio.timeout(timeout_s + GRACE_S):
                    end = await self._first.ask(said, data, {STDOUT: (stdout, most[0]), STDERR: (stderr, most[1])})
                    return stdout, stderr, _read_end(end)
            except BaseException as error:
                await self._give_up("ended by itself", error)
                raise

    async def _give_up(self, what: str, error: BaseException) -> None:
        """Stop the box. Raises BoxFailed in place of an error that says that it is broken."""
        lines = self._first.read_errors() if self._first else []
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
