"""Slows a worker whose groups all fail, so that an error in a scorer does not waste tokens at full speed."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.infra.backoff import Backoff

LENIENT = 32
"""Training groups in a row that may fail before the brake acts."""
FIRST_S = 0.1
LONGEST_S = 5.0


class FailureBrake:
    """After LENIENT failed groups in a row, tasks start one at a time, with a pause that doubles each time.

    Any group that does not fail releases the brake. The next start does not wait for the last task, which may never
    conclude.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._in_a_row = 0
        self._pauses = Backoff(FIRST_S, LONGEST_S)
        self._until = 0.0

    def note_group(self, *, failed: bool) -> None:
        """Take in whether a training group failed."""
        if not failed:
            self._in_a_row, self._until = 0, 0.0
            self._pauses.reset()
            return
        self._in_a_row += 1
        if self._in_a_row == LENIENT + 1:  # groups already under way do not lengthen the pause
            self._until = self._clock() + self._pauses.next_s()

    def is_released(self) -> bool:
        """Return whether another training task may start."""
        return self._clock() >= self._until

    def note_started(self) -> None:
        """Take in that a training task is started."""
        if self._in_a_row > LENIENT:
            self._until = self._clock() + self._pauses.next_s()
