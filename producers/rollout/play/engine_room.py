"""Room in the engine. A request holds it; an episode that waits for anything else does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from heapq import heappop, heappush
from itertools import count

UNLIMITED = 1_000_000_000


class EngineRoom:
    """Places for requests in the engine. A free one goes to the episode that began first, whatever its policy and task.

    So an episode waits only for those that began before it, and few conversations at a time need the engine's caches.
    Only the event loop may use it; any thread may read its counts.

    Args:
        places: Most requests that the engine gets at once.
    """

    def __init__(self, places: int = UNLIMITED) -> None:
        self.places = places
        self.running = 0
        """Requests in the engine."""
        self.waiting = 0
        """Requests that wait for a place."""
        self.held_up = 0
        """Waits of episodes for their turn at something else in this worker, such as their turn to score."""
        self._queue: list[tuple[int, int, asyncio.Future[None]]] = []
        """A heap: number of the episode, of the request, and a future that is done once the request has a place."""
        self._numbers = count()
        self._begun: set[object] = set()
        """A mark for each episode that has begun."""

    def draw_number(self) -> int:
        """Return the number of an episode that begins now."""
        return next(self._numbers)

    async def enter(self, episode: int = -1) -> None:
        """Take a place as soon as one is free and no earlier episode waits; a caller that is cancelled takes none."""
        has_place = asyncio.get_running_loop().create_future()
        heappush(self._queue, (episode, next(self._numbers), has_place))
        self.waiting += 1
        self._let_in()
        try:
            await has_place
        except asyncio.CancelledError:
            if has_place.cancelled():
                self.waiting -= 1
            else:
                self.leave()
            raise

    def leave(self) -> None:
        """Give a place back."""
        self.running -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self._queue and self.running < self.places:
            _, _, has_place = heappop(self._queue)
            if not has_place.done():  # else cancelled
                has_place.set_result(None)
                self.waiting, self.running = self.waiting - 1, self.running + 1

    @contextmanager
    def note_begun(self) -> Iterator[None]:
        """Count the block as an episode that has begun, but not before its first step, which may ask for a place."""
        mark = object()
        soon = asyncio.get_running_loop().call_soon(self._begun.add, mark)
        try:
            yield
        finally:
            soon.cancel()
            self._begun.discard(mark)

    def count_free(self, started: int) -> int:
        """Return the places that no request has, waits for or is about to ask for; negative if requests wait.

        Waits for other parts of this worker count, too: while they are its bottleneck, more episodes only wait longer.

        Args:
            started: Number of episodes with a slot. One that has not begun is about to ask for a place.
        """
        return self.places - self.running - self.waiting - self.held_up - (started - len(self._begun))


class EpisodeClock:
    """The time that one episode may take. It stands while the episode waits for its turn and no request of it runs.

    Args:
        limit_s: Seconds.
        room: Where its requests get a place.
        clock: Monotonic seconds.
    """

    def __init__(self, limit_s: float, room: EngineRoom, clock: Callable[[], float] = time.monotonic) -> None:
        self._room, self._clock, self._number = room, clock, room.draw_number()
        self._left_s, self._looked_s = limit_s, clock()
        self._waiting = self._running = 0

    def count_left_s(self) -> float:
        """Return the seconds that are left; negative if its time is over."""
        now_s = self._clock()
        if self._running or not self._waiting:
            self._left_s -= now_s - self._looked_s
        self._looked_s = now_s
        return self._left_s

    def note_begun(self) -> AbstractContextManager[None]:
        """See `EngineRoom.note_begun`."""
        return self._room.note_begun()

    @asynccontextmanager
    async def hold_place(self) -> AsyncIterator[None]:
        """Hold a place in the engine during the block, which must wait for nothing but the engine."""
        with self._stand():
            await self._room.enter(self._number)
        self._running += 1
        try:
            yield
        finally:
            self.count_left_s()
            self._running -= 1
            self._room.leave()

    @contextmanager
    def wait_for_turn(self) -> Iterator[None]:
        """See the function `wait_for_turn`."""
        self._room.held_up += 1
        try:
            with self._stand():
                yield
        finally:
            self._room.held_up -= 1

    @contextmanager
    def _stand(self) -> Iterator[None]:
        self.count_left_s()
        self._waiting += 1
        try:
            yield
        finally:
            self.count_left_s()
            self._waiting -= 1


EPISODE_CLOCK: ContextVar[EpisodeClock | None] = ContextVar("EPISODE_CLOCK", default=None)
"""The clock of the episode to which an asyncio task belongs."""


def wait_for_turn() -> AbstractContextManager[None]:
    """Let the clock of the current episode stand in the block, which only waits for a part of this worker to be free.

    Meanwhile no further task begins if such waits and requests take all room.
    """
    clock = EPISODE_CLOCK.get()
    return clock.wait_for_turn() if clock is not None else nullcontext()
