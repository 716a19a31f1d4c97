"""Slots for the episodes that a worker has begun and not ended."""

from __future__ import annotations

import asyncio
import threading

from headrace.producers.rollout.play.engine_room import EngineRoom

FREED_POLL_S = 0.02


class Slots:
    """Counts taken slots; safe to use from several threads.

    Args:
        total: Most episodes at once.
        room: Of their requests. No task gets slots while requests have or wait for all places: its episodes would only
            wait, too. Without it, each episode counts as a request.
    """

    def __init__(self, total: int, room: EngineRoom | None = None) -> None:
        self.total, self.room = total, room or EngineRoom(total)
        self.taken = 0
        self._lock = threading.Lock()
        self._line = asyncio.Lock()
        """Held by the started task that waits for its slots."""

    def reserve(self, n: int) -> Reservation | None:
        """Take slots for n episodes; return None if too few are free, or if a started task waits for slots.

        A task that asks for more than half of all slots gets the free slots as soon as half of all slots are free: to
        wait for the last of many episodes would leave nearly all slots idle.
        """
        size = 0 if self._line.locked() else self._take(n)
        return Reservation(self, n, size) if size else None

    async def _wait_for(self, n: int) -> int:
        """Take slots for n episodes of a started task as soon as they are free; return how many."""
        async with self._line:
            while not (size := self._take(n)):  # noqa: ASYNC110 - other threads give slots back too
                await asyncio.sleep(FREED_POLL_S)
            return size

    def _take(self, n: int) -> int:
        """Take slots for n episodes; return how many, 0 if too few are free."""
        with self._lock:
            free = self.total - self.taken
            if free < min(n, (self.total + 1) // 2) or self.room.count_free(self.taken) < 1:
                return 0
            size = min(n, free)
            self.taken += size
            return size

    def _give_back(self, n: int) -> None:
        with self._lock:
            self.taken -= n


class Reservation:
    """Slots of one task, given back one by one as its last episodes end.

    Args:
        slots: Slots of the worker.
        episodes: Number of the task's episodes.
        size: Number of slots, so that this many episodes run at once.
    """

    def __init__(self, slots: Slots, episodes: int, size: int) -> None:
        self.size = size
        self._slots, self._left, self._held = slots, episodes, size

    def lend(self) -> None:
        """Let other tasks have the slots until `take_back`."""
        given, self._held = self._held, 0
        self._slots._give_back(given)  # noqa: SLF001 - the two are one thing

    async def take_back(self) -> None:
        """Take slots again, before any task that has not started."""
        self._held = self.size = await self._slots._wait_for(self._left)  # noqa: SLF001 - the two are one thing

    def note_ended(self) -> None:
        """Count an ended episode, and give its slot back unless another episode of the task needs it."""
        self._shrink(self._left - 1)

    def close(self) -> None:
        """Give back the remaining slots."""
        self._shrink(0)

    def _shrink(self, left: int) -> None:
        self._left = max(0, left)
        given = max(0, self._held - self._left)
        self._held -= given
        self._slots._give_back(given)  # noqa: SLF001 - the two are one thing
