"""Decides, at the end of a run, when a worker cancels its episodes and when it may leave."""

from __future__ import annotations

import asyncio
import math

RUN_END_S = 10.0
"""Seconds after the end of the run at which running training episodes are cancelled."""
OVER_AFTER_S = 20.0
"""Seconds without a task after which an ended run is over; it may be later, see `AFTER_SESSION_S`."""
AFTER_SESSION_S = 12.0
"""Seconds after a killed worker's session time-out until another worker has its tasks. An embedded broker has 8 s."""


class RunEnd:
    """State of the end. Only the event loop may use it; the caller gives monotonic seconds."""

    def __init__(self) -> None:
        self.ending = asyncio.Event()
        """Set when running training episodes should end; replaced if the run continues after its end."""
        self._ending_at_s = math.inf
        self._busy_at_s = math.inf
        self._over_after_s = OVER_AFTER_S

    def begin(self, now_s: float, session_s: float) -> None:
        """Start the wait for tasks now, because the model may have taken minutes to load.

        Args:
            now_s: Now.
            session_s: The cluster's session time-out, after which a dead worker's tasks go to another worker.
        """
        self._busy_at_s = now_s
        self._over_after_s = max(OVER_AFTER_S, session_s + AFTER_SESSION_S)

    def update_ending(self, now_s: float, *, has_ended: bool) -> None:
        """Start the wait when the run has ended, and set `ending` after the time for running episodes."""
        if not has_ended:
            if self.ending.is_set():
                self.ending = asyncio.Event()
            self._ending_at_s = math.inf
        elif self._ending_at_s == math.inf:
            self._ending_at_s = now_s + RUN_END_S
        elif now_s >= self._ending_at_s:
            self.ending.set()

    def is_over(self, now_s: float, *, has_ended: bool, is_busy: bool) -> bool:
        """Return whether the run has ended and the wait for further tasks is over."""
        if is_busy or not has_ended:
            self._busy_at_s = now_s
        return now_s - self._busy_at_s > self._over_after_s
