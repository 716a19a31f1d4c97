"""Slots for episodes: how many a worker runs at once."""

from __future__ import annotations

import threading


class Slots:
    """Counts slots that are taken; safe to use from several threads."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.taken = 0
        self._lock = threading.Lock()

    def reserve(self, n: int) -> Reservation | None:
        """Take n slots; None when they are not free. More than `total` are granted when all slots are free."""
        with self._lock:
            if self.taken and self.taken + n > self.total:
                return None
            self.taken += n
            return Reservation(self, n)

    def _give(self, n: int) -> None:
        with self._lock:
            self.taken -= n


class Reservation:
    """Slots of one task, given back one by one as its episodes end."""

    def __init__(self, slots: Slots, n: int) -> None:
        self._slots, self._left = slots, n

    def release_one(self) -> None:
        """Give one slot back."""
        self._give(min(1, self._left))

    def close(self) -> None:
        """Give back what is left."""
        self._give(self._left)

    def _give(self, n: int) -> None:
        self._left -= n
        self._slots._give(n)  # noqa: SLF001 - the two are one thing
