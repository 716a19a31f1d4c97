"""Evictions that wait to be reported. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic

from headrace.trainers.batches.window import T, Waiting, WindowEviction

EVICTIONS_WAIT_S = 1.0
"""Seconds that evictions may wait for the transaction of a version; after that they get one of their own."""


class Evictions(Generic[T]):
    """Groups that left the window untrained, not yet on the log.

    Args:
        clock: Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: list[WindowEviction[T]] = []
        self._since = 0.0
        """Time of the clock since which the first of them waits."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, evictions: list[WindowEviction[T]]) -> None:
        """Take in what left the window."""
        if evictions and not self._waiting:
            self._since = self._clock()
        self._waiting += evictions

    def end(self, entries: list[Waiting[T]] | None) -> None:
        """Take in what was in the window when the run ended."""
        self.add([WindowEviction(entry, "run_end") for entry in entries or ()])

    def pop_all(self) -> list[WindowEviction[T]]:
        """Return all, to be reported now."""
        taken, self._waiting = self._waiting, []
        return taken

    def is_due(self, is_idle: bool, has_batch: bool) -> bool:
        """Return whether they are to be reported by themselves, given whether no version is on its way.

        While one is they wait for its transaction. Where the store is frozen it does not come, and each group is too
        old for it as it arrives: a report concludes the number, the feeder issues another, and rollouts would burn
        without end. So the numbers stay open, and the feeder waits too.
        """
        if not self._waiting or not is_idle:
            return False
        return has_batch or self._clock() - self._since > EVICTIONS_WAIT_S
