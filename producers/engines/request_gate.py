"""Requests that wait for their turn at a server, in the order that they came."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from headrace.producers.engines.admission import Admission
from headrace.producers.engines.server_api import ServerLoad

TURN_S = 1.0
"""A request looks so often whether it has to wait elsewhere, or not any more."""


class RequestGate:
    """The requests that one server has, and those that are held back. Belongs to the event loop, but for `look`.

    Args:
        admission: Tells how many it may have.
    """

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.under_way = 0
        self._held: deque[asyncio.Event] = deque()

    @property
    def held_back(self) -> int:
        """Requests that wait here."""
        return len(self._held)

    @property
    def crowding(self) -> float:
        """Requests here, as a share of those that the server may have."""
        return (self.under_way + self.held_back) / self.admission.limit

    async def wait_for_place(self, can_stay: Callable[[], bool], end: float | None, *, goes_on: bool) -> bool:
        """Wait for its turn; return True with a place among those under way, which `leave` gives back.

        Args:
            can_stay: Whether this is still where to wait. What it raises ends the wait.
            end: When the wait ends, by `time.monotonic`.
            goes_on: Whether the request was under way before: it comes before all others, as it has tokens already.
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
            goes_on: Whether the request is not over: it comes again, at once or elsewhere.
        """
        self.under_way -= 1
        if not goes_on:
            self.admission.note_ended()
        self._wake()

    def look(self, load: ServerLoad) -> None:
        """Take a reading of the server, from any thread."""
        if self.under_way or self._held:
            self.admission.look(load, self.under_way, self.held_back)

    def _has_room(self) -> bool:
        return self.under_way < self.admission.limit

    def _wake(self) -> None:
        if self._held and self._has_room():
            self._held[0].set()
