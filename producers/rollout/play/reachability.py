"""Waits for an unreachable environment or judge: an episode that needs it is played again, not failed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TypeGuard

from headrace.envs.contact import CONTACT, Contact
from headrace.envs.contract import Episode
from headrace.infra.backoff import Backoff
from headrace.producers.rollout.pauses import ENVIRONMENT, Pauses
from headrace.schemas.records import Failure

UNREACHABLE = "unreachable"
"""Reason of the failure of an episode whose environment could not be reached."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
SAID_AFTER_S = 3.0
"""Seconds without an answer before the wait is reported."""
LONGEST_WAIT_S = 600.0
"""An episode that waits longer fails: it may be the only unplayable episode, and block the others."""
MOST_TIMES = 8
"""Most repetitions of an episode while others reach the environment; after that the fault is its own."""


class Reachability(Contact):
    """Whether a worker's environment can be reached. Only the event loop may use it.

    While it is unreachable, one episode at a time tries it, with a pause before each try, until it ends or says that it
    has reached it. The other episodes wait and no new one begins, because their answers could not be judged.

    Args:
        pauses: Where the wait is reported.
        clock: Seconds.
        sleep: Waits so many seconds.
        longest_wait_s: An episode that waits longer fails; 0 plays each once.
    """

    def __init__(
        self,
        pauses: Pauses | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        longest_wait_s: float = LONGEST_WAIT_S,
    ) -> None:
        self._pauses, self._clock, self._sleep = pauses or Pauses(), clock, sleep
        self._longest_wait_s = longest_wait_s
        self._away_since_s: float | None = None
        self._reached = 0
        """How often an episode has reached the environment."""
        self._trying, self._try = asyncio.Lock(), ExitStack()

    async def play_when_reachable(self, play: Callable[[], Awaitable[Episode | Failure]]) -> Episode | Failure:
        """Play an episode, again while its environment cannot be reached; return its result."""
        backoff, times, reached = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), 0, self._reached
        failed_at_s: float | None = None
        CONTACT.set(self)
        while True:
            with ExitStack() as own_try:
                if self._is_away():
                    await self._trying.acquire()
                    own_try.callback(self._trying.release)
                    if not self._is_away():  # another episode has reached it meanwhile
                        continue
                    self._try = own_try
                    await self._sleep(backoff.next_s())
                elif failed_at_s is not None:
                    await self._sleep(backoff.next_s())
                ended = await self._play_once(play)
            if not _is_unreachable(ended):
                return ended
            failed_at_s = self._clock() if failed_at_s is None else failed_at_s
            times, reached = times + (self._reached > reached), self._reached
            if times >= MOST_TIMES or self._clock() - failed_at_s >= self._longest_wait_s:
                return ended

    def note_reached(self) -> None:
        """Let all episodes go on: the environment is there."""
        self._away_since_s = None
        self._reached += 1
        self._pauses.end(ENVIRONMENT)
        self._try.close()

    def note_full(self, why: str) -> None:
        """Report that episodes wait for a place. The environment is there: the others go on."""
        self._pauses.begin(ENVIRONMENT, why)

    def _is_away(self) -> bool:
        return self._away_since_s is not None

    async def _play_once(self, play: Callable[[], Awaitable[Episode | Failure]]) -> Episode | Failure:
        ended = await play()
        if _is_unreachable(ended):
            now_s = self._clock()
            self._away_since_s = now_s if self._away_since_s is None else self._away_since_s
            if now_s - self._away_since_s >= SAID_AFTER_S:
                self._pauses.begin(ENVIRONMENT, f"{ended.detail} at {ended.at}")
        elif not isinstance(ended, Failure) or ended.reason == "error":
            self.note_reached()
        return ended


def _is_unreachable(ended: Episode | Failure) -> TypeGuard[Failure]:
    return isinstance(ended, Failure) and ended.reason == UNREACHABLE
