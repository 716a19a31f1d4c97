"""Requests that wait for their turn at a server, in the order that they came."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from headrace.producers.engines.served.admission import Admission
from headrace.producers.engines.served.server_api import ServerLoad

TURN_S = 1.0
"""Seconds between two checks of a waiting request whether it should wait at another server or stop waiting."""


class RequestGate:
    """The requests in one server, and those held back. Only the event loop may call it, except `look`.

    Args:
        admission: Says how many requests the server may have.
    """

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.under_way = 0
        self._held: deque[asyncio.Event] = deque()

    @property
    def held_back(self) -> int:
        """Requests that wait for a place."""
        return len(self._held)

    @property
    def crowding(self) -> float:
        """Requests in the server and held back, as a share of the number that it may have."""
        return (self.under_way + self.held_back) / self.admission.limit

    async def wait_for_place(self, can_stay: Callable[[], bool], end: float | None, *, goes_on: bool) -> bool:
        """Wait for a place in the server; return True if the request got one, which `leave` gives back.

        Args:
            can_stay: Whether the request should still wait here. An exception of this function ends the wait.
            end: When the wait ends, by `time.monotonic`.
            goes_on: Whether the request already has tokens from an earlier server: then it comes before all others.
        """
        if self._has_room() and (goes_on or not self._held):
            self.under_way += 1
            return True
        turn = asyncio.Event()
        (self._held.appendleft if goes_on else self._held.append)(turn)
        try:
            while can_stay():
                if self._held[0] is turn and self._has_room():
                    self.under_way += 1
                    return True
                left_s = TURN_S if end is None else min(TURN_S, end - time.monotonic())
                if left_s <= 0:
                    return False
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_s):  # `wait_for` of 3.11 may lose that the request is cancelled
                        await turn.wait()
                turn.clear()
            return False
        finally:
            self._held.remove(turn)
            self._wake()  # the limit may have grown by more than one, or the first one has gone

    def leave(self, *, goes_on: bool = False) -> None:
        """Give a place back.

        Args:
            goes_on: Whether the request will ask for a place again, here or at another server.
        """
        self.under_way -= 1
        if not goes_on:
            self.admission.note_ended()
        self._wake()

    def look(self, load: ServerLoad) -> None:
        """Take in the server's load, from any thread."""
        if self.under_way or self._held:
            self.admission.look(load, self.under_way, self.held_back)

    def _has_room(self) -> bool:
        return self.under_way < self.admission.limit

    def _wake(self) -> None:
        if self._held and self._has_room():
            self._held[0].set()
