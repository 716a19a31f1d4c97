"""The first process of a box, as its owner has it: started, asked over a socket, and ended with all that it runs."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any

from headrace.envs.sandbox.file_stream import BadStream
from headrace.envs.sandbox.frames import END, FRAME, LARGEST_FRAME, encode_request
from headrace.envs.sandbox.limits import Limits
from headrace.envs.sandbox.memory_group import MemoryGroup, make_memory_group
from headrace.envs.sandbox.namespaces import build_command

STOP_S = 5.0
"""Seconds for a box to end by itself."""
MOST_SAID = 1 << 14
"""Bytes of what it wrote to its stderr."""


class FirstProcess:
    """Starts the first process of a box; every answer may come from code in the box. Raises OSError.

    Args:
        backend: Program that makes the namespaces.
        limits: What all processes of the box may use together.
        side: Socket that it has as its stdout, to hand over others by.
    """

    def __init__(self, backend: str, limits: Limits, side: socket.socket | None = None) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `stop`
        self._group = make_memory_group(limits)
        self._ours, theirs = socket.socketpair()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            command = [*_join_group(self._group), *build_command(backend)]
            self._process = _start(command, theirs, side, self._errors)
        except BaseException:
            self._ours.close()
            self._clean_up()
            raise
        finally:
            theirs.close()

    @property
    def is_memory_counted(self) -> bool:
        """Return whether a cgroup counts the memory of the box."""
        return self._group is not None

    async def ask(
        self, said: dict[str, Any], data: bytes = b"", outputs: Mapping[int, tuple[bytearray, int]] | None = None
    ) -> bytes:
        """Send a request and return what stands at its end; what comes before is added to the outputs.

        `outputs` is kind to a buffer and its largest size. Raises OSError, EOFError, ValueError or KeyError if the
        process is gone or its answer is none.
        """
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(sock=self._ours, limit=4 * LARGEST_FRAME)
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

    def read_errors(self) -> list[str]:
        """Return the lines that the process wrote to its stderr."""
        self._errors.seek(0)
        return self._errors.read(MOST_SAID).decode(errors="replace").strip().splitlines()

    def kill(self) -> None:
        """Kill the process, and with it all processes of the box."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """End the process, and wait until all processes of the box are gone."""
        if self._writer is None:
            self._ours.close()
        else:
            self._writer.transport.abort()
        if self._process is not None:
            ended = asyncio.ensure_future(asyncio.to_thread(self._process.wait))
            await asyncio.wait({ended}, timeout=STOP_S)
            if not ended.done():
                self.kill()
            await ended
        self._clean_up()

    def _clean_up(self) -> None:
        if self._group is not None:
            self._group.remove()
        self._errors.close()


def _join_group(group: MemoryGroup | None) -> list[str]:
    """Return the words that start a command in a cgroup."""
    return [] if group is None else ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(group.members)]


def _start(
    command: list[str], control: socket.socket, side: socket.socket | None, errors: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own, without a variable of this process."""
    out = subprocess.DEVNULL if side is None else side.fileno()
    return subprocess.Popen(
        command, stdin=control.fileno(), stdout=out, stderr=errors, env={}, cwd="/", start_new_session=True
    )
