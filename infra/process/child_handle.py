"""A child process as its parent sees it: what runs in it, which of that is late, and how it ended.

A call that is late fails, with the place where it is. If its child does not even tell the place, code in it holds the
GIL: then the child is killed. `child.py` is the child's side.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from headrace.infra.errors import HeadraceError
from headrace.infra.log import read_bound
from headrace.infra.own_frames import find_own_location
from headrace.infra.process.carried_errors import convert_to_exception, unpack_error
from headrace.infra.process.child import LENGTH, pack_frame
from headrace.infra.process.child_process import PYTHON
from headrace.infra.unreachable import OutOfTime

START_LIMIT_S = 300.0
"""Seconds for the start of a child, in which it builds its object."""
FROZEN_S = 1.0
"""A child that does not tell the place of a late call for so long is frozen."""
STACKS_S = 0.2
"""Seconds for the stacks of a frozen child."""
FROZEN = "was killed because code in it holds the GIL, as a regular expression may, and lets no other code run"
numbers = count(1)
"""Of calls and sessions."""
_alive: set[ChildHandle] = set()
"""All children, until their ends are settled: an event loop keeps no task from being collected."""


class Overdue(OutOfTime):
    """A call took longer than its time limit; `at` is where it was."""

    is_own = True

    def __init__(self, text: str, at: str) -> None:
        super().__init__(text)
        self.at = at


class ChildDied(HeadraceError):
    """The child of a call has died at `at`; `is_own`: nothing else ran in it."""

    def __init__(self, text: str, at: str, *, is_own: bool = False) -> None:
        super().__init__(text)
        self.at, self.is_own = at, is_own


@dataclass(slots=True)
class Call:
    """A call of a function, sync or async."""

    what: str
    """What runs, for messages."""
    function: Callable[..., object]
    """Of the top level of a module. It gets the object that the child has built, `kept`, and the arguments."""
    kept: object
    """The child keeps it for the session, until another one is sent."""
    arguments: tuple[Any, ...]
    limit_s: float
    late: str
    """Text of the error of a call that takes longer."""
    kept_name: str = ""
    """Of `kept` among those of the session."""
    may_repeat: bool = False
    """Whether to repeat it in a child of its own if its child died, and others may have been the cause."""
    leaves_state: bool = True
    """Whether later calls of the session need its child."""
    answer: asyncio.Future[tuple[str, bytes]] = field(init=False)
    timer: asyncio.TimerHandle = field(init=False)


class ChildHandle:
    """A child process. All happens in the pool's thread."""

    def __init__(self, recipe: bytes, on_end: Callable[[ChildHandle], object]) -> None:
        self.loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[tuple[str, bytes]] = self.loop.create_future()
        """Done when its object is built."""
        self.ready.add_done_callback(lambda done: done.exception())  # perhaps nobody waits for it
        self.calls: dict[int, Call] = {}
        self.overdue: set[int] = set()
        """Late calls that still run."""
        self.sessions = 0
        self.death = self.at = ""
        """How it died, and where it was."""
        self._on_end, self._late = on_end, 0
        self._writer: asyncio.StreamWriter | None = None
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 - closed at its end
        ours, theirs = socket.socketpair()
        with theirs:
            inherited = (theirs.fileno(), self._stacks.fileno())
            command = [*PYTHON, "-m", "headrace.infra.process.child", *map(str, inherited)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=inherited, process_group=0)
        _alive.add(self)
        self._timer = self.loop.call_later(START_LIMIT_S, self.kill, f"was not ready within {START_LIMIT_S:g} s")
        self._reading = self.loop.create_task(self._read(ours, pack_frame(sys.path, read_bound(), recipe)))
        self._reading._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - at the exit of this process

    async def wait_until_ready(self) -> None:
        """Raise what its start raises, and ChildDied."""
        kind, payload = await asyncio.shield(self.ready)
        if kind == "error":
            raise convert_to_exception("the environment", unpack_error(payload))

    async def run(self, call: Call, session: int, kept: bytes | None, function: bytes) -> tuple[str, bytes]:
        """Return the answer to a call. Raises Overdue and ChildDied."""
        if self.death:
            raise self._describe_death(call.what, 1)
        number = next(numbers)
        self.calls[number] = call
        call.answer = self.loop.create_future()
        call.timer = self.loop.call_later(call.limit_s, self._locate, number)
        self.send(number, "call", session, call.kept_name, kept, function)
        try:
            return await call.answer
        except asyncio.CancelledError:
            self.send(number, "cancel")
            raise

    def send(self, *message: Any) -> None:
        """Send a frame, without waiting."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(pack_frame(*message))

    async def _read(self, channel: socket.socket, first: bytes) -> None:
        """Take frames until the end of the child."""
        reader, self._writer = await asyncio.open_connection(sock=channel)
        self._writer.write(first)
        with suppress(Exception):  # at its end, or whatever it sent
            while True:
                [size] = LENGTH.unpack(await reader.readexactly(LENGTH.size))
                self._take(*pickle.loads(await reader.readexactly(size)))
        self._writer.close()
        self._settle_end()

    def _take(self, number: int, kind: str, payload: bytes) -> None:
        if number == 0:
            self._timer.cancel()
            self.ready.set_result((kind, payload))
            return
        if (call := self.calls.get(number)) is None:  # it has returned before it was located
            return
        call.timer.cancel()
        if kind == "at":
            self.overdue.add(number)
            if not call.answer.done():
                call.answer.set_exception(Overdue(call.late, payload.decode()))
            self.end_if_stuck()
            return
        del self.calls[number]
        self.overdue.discard(number)
        if not call.answer.done():
            call.answer.set_result((kind, payload))

    def _locate(self, number: int) -> None:
        self.send(number, "locate")
        self.calls[number].timer = self.loop.call_later(FROZEN_S, self._end_frozen, number)

    def _end_frozen(self, number: int) -> None:
        self._late, self.death = number, FROZEN
        self._process.send_signal(signal.SIGUSR1)  # it writes its stacks, whoever holds the GIL
        self.loop.call_later(STACKS_S, self.kill)

    def end_if_stuck(self) -> None:
        """End it if late calls are all that is left."""
        if self.overdue and not self.sessions:
            self.kill("was ended with its late calls")

    def kill(self, why: str = "") -> None:
        """Kill it with its process group; its end is noticed later."""
        self.death = self.death or why
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _settle_end(self) -> None:
        """Fail what runs in it."""
        self.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        self._timer.cancel()
        self.death = self.death or _describe_end(self._process.returncode)
        with self._stacks:
            self._stacks.seek(0)
            self.at = _find_location(self._stacks.read().decode(errors="replace"))
        for number, call in self.calls.items():
            call.timer.cancel()
            error: Exception = self._describe_death(call.what, len(self.calls) - 1)
            if len(self.calls) == 1 and number == self._late:
                error = Overdue(call.late, self.at)
            if not call.answer.done():
                call.answer.set_exception(error)
        if not self.ready.done():
            self.ready.set_exception(self._describe_death("the start of the environment", 0))
        _alive.discard(self)
        self._on_end(self)

    def _describe_death(self, what: str, others: int) -> ChildDied:
        blamed = f"; {others} more ran in it, any of which may be the cause" if others else ""
        return ChildDied(f"the child process of {what} {self.death}{blamed}", self.at, is_own=not others)


def _describe_end(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with exit status {code}"
    memory = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
    return f"was ended by signal {-code} ({signal.Signals(-code).name}){memory}"


def _find_location(stacks: str) -> str:
    """Return where a child was, by its stacks: the thread that crashed, else the last thread in user code."""
    crashed = stacks.partition("Current thread")[2].partition("\n\n")[0]
    return find_own_location(f"Current thread{crashed}".splitlines()) or find_own_location(stacks.splitlines())
