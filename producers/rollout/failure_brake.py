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
    """After some dozens of failed groups in a row one task is started at a time, after a pause that doubles.

    Any group that does not fail releases it. A task that was started is not waited for: it may never conclude.

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
        if self._in_a_row == LENIENT + 1:  # further ones were under way already, and lengthen nothing
            self._until = self._clock() + self._pauses.next_s()

    def is_released(self) -> bool:
        """Return whether a further training task may be started."""
        return self._clock() >= self._until

    def note_started(self) -> None:
        """Take in that a training task is started."""
        if self._in_a_row > LENIENT:
            self._until = self._clock() + self._pauses.next_s()
