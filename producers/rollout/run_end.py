"""What the end of a run means to a worker: when its episodes are ended, and when it may leave."""

from __future__ import annotations

import asyncio
import math

RUN_END_S = 10.0
"""Running training episodes get so long after the end of the run."""
OVER_AFTER_S = 20.0
"""A run that has ended is over after so long without a task, or later: see `AFTER_SESSION_S`."""
AFTER_SESSION_S = 12.0
"""So long after the session of a killed worker its tasks have come to another. The embedded broker's is of 8 s."""


class RunEnd:
    """Belongs to the event loop; its clock is monotonic and the caller's, in seconds."""

    def __init__(self) -> None:
        self.ending = asyncio.Event()
        """Set when running training episodes are to end; a run that goes on after its end has another one."""
        self._ending_at_s = math.inf
        self._busy_at_s = math.inf
        self._over_after_s = OVER_AFTER_S

    def begin(self, now_s: float, session_s: float) -> None:
        """Begin to wait for tasks, which can come from now on: a model may have taken minutes to load.

        Args:
            now_s: Now.
            session_s: After so long without a sign the tasks of a dead worker go to another.
        """
        self._busy_at_s = now_s
        self._over_after_s = max(OVER_AFTER_S, session_s + AFTER_SESSION_S)

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
        return now_s - self._busy_at_s > self._over_after_s
