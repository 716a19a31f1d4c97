"""What the end of a run means to a worker: when its episodes are ended, and when it may leave."""

from __future__ import annotations

import asyncio
import math

RUN_END_S = 10.0
"""Running training episodes get so long after the end of the run."""
OVER_AFTER_S = 20.0
"""A run that has ended is over after so long without a task: a killed worker's come to another within 8 s."""


class RunEnd:
    """Belongs to the event loop; its clock is monotonic and the caller's, in seconds."""

    def __init__(self, now_s: float) -> None:
        self.ending = asyncio.Event()
        """Set when running training episodes are to end; a run that goes on after its end has another one."""
        self._ending_at_s = math.inf
        self._busy_at_s = now_s

    def look(self, now_s: float, *, has_ended: bool) -> None:
        """Begin to wait when the run has ended, and end its episodes when that was long enough."""
        if not has_ended:
            if self.ending.is_set():
                self.ending = asyncio.Event()
            self._ending_at_s = math.inf
        elif self._ending_at_s == math.inf:
            self._ending_at_s = now_s + RUN_END_S
        elif now_s >= self._ending_at_s:
            self.ending.set()

    def is_over(self, now_s: float, *, has_ended: bool, is_busy: bool) -> bool:
        """Return whether the run has ended and no task came for so long that none will."""
        if is_busy or not has_ended:
            self._busy_at_s = now_s
        return now_s - self._busy_at_s > OVER_AFTER_S
