"""Evicted groups whose eviction is not yet on the log. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic

from headrace.trainers.batches.window import T, Waiting, WindowEviction

EVICTIONS_WAIT_S = 1.0
"""Seconds that evictions may wait for a version's transaction; after that they get a separate transaction."""


class Evictions(Generic[T]):
    """Groups that left the window untrained, and are not yet reported.

    Args:
        clock: Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: list[WindowEviction[T]] = []
        self._since = 0.0
        """Time since which the first eviction waits."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, evictions: list[WindowEviction[T]]) -> None:
        """Take in groups that left the window."""
        if evictions and not self._waiting:
            self._since = self._clock()
        self._waiting += evictions

    def end(self, entries: list[Waiting[T]] | None) -> None:
        """Take in the groups in the window when the run ended."""
        self.add([WindowEviction(entry, "run_end") for entry in entries or ()])

    def pop_all(self) -> list[WindowEviction[T]]:
        """Return and forget all evictions, to report them now."""
        taken, self._waiting = self._waiting, []
        return taken

    def is_due(self, is_idle: bool, has_batch: bool) -> bool:
        """Return whether evictions must be reported in a separate transaction.

        While a version is on its way, evictions wait for its transaction. If the store hangs, that version never comes,
        and every new group is too old when it arrives. A report would conclude the number, the feeder would issue
        another, and rollouts would be wasted without end. So the numbers stay open, and the feeder waits too.
        """
        if not self._waiting or not is_idle:
            return False
        return has_batch or self._clock() - self._since > EVICTIONS_WAIT_S
