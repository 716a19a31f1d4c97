"""Slows a worker whose groups all fail, so that a mistake in a scorer does not burn tokens at full speed."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.infra.backoff import Backoff

LENIENT = 32
"""Training groups that may fail one after another before anything slows down."""
FIRST_S = 0.1
LONGEST_S = 5.0


class FailureBrake:
    """After some dozens of failed groups in a row each further one doubles the pause before the next task.

    Any group that does not fail releases it. `note` belongs to the event loop; any thread may ask `is_released`.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._in_a_row = 0
        self._pauses = Backoff(FIRST_S, LONGEST_S)
        self._until = 0.0

    def note(self, *, failed: bool) -> None:
        """Take in what became of a training group."""
        if not failed:
            self._in_a_row, self._until = 0, 0.0
            self._pauses.reset()
            return
        self._in_a_row += 1
        if self._in_a_row > LENIENT and self.is_released():  # groups that were under way already lengthen nothing
            self._until = self._clock() + self._pauses.next_s()

    def is_released(self) -> bool:
        """Return whether a further training task may be started."""
        return self._clock() >= self._until
