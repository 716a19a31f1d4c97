"""The places at an OpenEnv server, for which the episodes of a worker wait: first come, first served."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from headrace.envs.contact import CONTACT
from headrace.infra.unreachable import OutOfTime

T = TypeVar("T")
PAUSE_S = 0.5
"""Between two tries at a full server."""
SLOW_S = 1.0
"""Seconds without an answer after which the next episode may try, too."""
SAID_AFTER_S = 3.0
"""Seconds without a session of this worker at a full server, after which the wait is reported."""
FULL_LIMIT_S = 600.0
"""Seconds without a session of this worker at a full server, after which a waiting episode fails."""


class Full(Exception):
    """The server has no place now."""


class Places:
    """The places of one server. The first episode in the line tries, with pauses; a session that closes wakes it.

    Only the event loop may use it.
    """

    def __init__(self) -> None:
        self._line = deque[asyncio.Event]()
        """Set for the episode that may try."""
        self._opened, self._changed_s = 0, 0.0

    async def open(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Return what `begin` opened; while it raises Full, wait. The caller calls `note_closed`.

        Raises OutOfTime after `FULL_LIMIT_S` without a session of this worker, and what else `begin` raises.
        """
        if not self._line:
            with suppress(Full):
                return self._note_opened(await begin())
        me, loop, pause_s = asyncio.Event(), asyncio.get_running_loop(), None
        since_s = loop.time()
        self._line.append(me)
        self._wake_first()
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await me.wait()
                me.clear()
                next_one = loop.call_later(SLOW_S, self._leave, me)
                try:
                    return self._note_opened(await begin())
                except Full as error:
                    self._check_wait(since_s, error)
                finally:
                    next_one.cancel()
                if me not in self._line:
                    self._line.appendleft(me)
                pause_s = PAUSE_S
        finally:
            self._leave(me)

    def note_closed(self) -> None:
        """Note that a session is over: the first one in the line tries at once."""
        self._opened, self._changed_s = self._opened - 1, asyncio.get_running_loop().time()
        self._wake_first()

    def _note_opened(self, opened: T) -> T:
        self._opened, self._changed_s = self._opened + 1, asyncio.get_running_loop().time()
        return opened

    def _check_wait(self, since_s: float, error: Full) -> None:
        """Report a long wait. Raises OutOfTime at its end."""
        if self._opened:
            return
        without_s = asyncio.get_running_loop().time() - max(since_s, self._changed_s)
        if without_s >= FULL_LIMIT_S:
            raise OutOfTime(f"{error} for {FULL_LIMIT_S:g} s: let it serve more sessions") from error
        if without_s >= SAID_AFTER_S:
            CONTACT.get().note_full(str(error))

    def _leave(self, one: asyncio.Event) -> None:
        if one in self._line:
            self._line.remove(one)
            self._wake_first()

    def _wake_first(self) -> None:
        if self._line:
            self._line[0].set()


PLACES: defaultdict[str, Places] = defaultdict(Places)
"""Address of a server to its places, for all environments of this process."""
