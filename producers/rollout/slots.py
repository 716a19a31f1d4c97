"""Slots for the episodes that a worker runs at once."""

from __future__ import annotations

import threading


class Slots:
    """Counts taken slots; safe to use from several threads."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0
        self._lock = threading.Lock()

    def reserve(self, n: int) -> Reservation | None:
        """Take slots for n episodes; return None if too few are free.

        A task that asks for more than half of all slots gets the free slots as soon as half of all slots are free: to
        wait for the last of many episodes would leave nearly all slots idle.
        """
        with self._lock:
            free = self.total - self.taken
            if free < min(n, (self.total + 1) // 2):
                return None
            size = min(n, free)
            self.taken += size
            return Reservation(self, n, size)

    def _give(self, n: int) -> None:
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
        self._slots._give(given)  # noqa: SLF001 - the two are one thing
