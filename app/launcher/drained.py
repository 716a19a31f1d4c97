"""What the launcher needs of the page that follows a run, and when a run has drained."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

GROUPS_DRAIN_S = 30.0
"""Seconds after the end of a run: workers conclude what they hold within 10 s, and the tasks of a killed worker go to
another after 8 s."""
AFTER_SESSION_S = 20.0
"""Seconds that the drain still takes once another worker has the tasks of a dead one."""
EVALUATION_DRAIN_S = 60.0
"""Seconds for the last version's evaluation, which may take longer."""


class RunPage(Protocol):
    """Follows a run's topics and shows them."""

    def turn(self, timeout_s: float) -> None:
        """Read what is new, waiting at most that long for it, and show it."""

    @property
    def ended(self) -> str:
        """Why the run is over; empty while it is running."""

    @property
    def in_flight(self) -> int:
        """Numbers that are issued and not concluded, over all policies and shadows."""

    @property
    def is_awaiting_evaluation(self) -> bool:
        """Whether the last version's evaluation is still to come."""

    @property
    def progress(self) -> object:
        """Progress of the run: the value changes when the run has progressed."""

    @property
    def standstill(self) -> str:
        """What keeps the run from its next version; empty once it has ended."""

    @property
    def hopeless(self) -> str:
        """Why to give up the run (no episode has ever succeeded); empty otherwise."""

    def close(self) -> None:
        """Restore the terminal."""


def groups_drain_s(session_s: float) -> float:
    """Return how long groups may still arrive after a run's end, in seconds.

    Where a worker is killed at the end its tasks are another's only after the session of the consumer group; the
    embedded broker's is of 8 s, a cluster's mostly of 45 s.
    """
    return max(GROUPS_DRAIN_S, session_s + AFTER_SESSION_S)


def is_drained(page: RunPage, since_end_s: float, since_concluded_s: float, drain_s: float = GROUPS_DRAIN_S) -> bool:
    """Return whether a run that has ended has also drained.

    Args:
        page: Follows the run.
        since_end_s: Seconds since its end.
        since_concluded_s: Seconds since the last group was concluded, or since the end.
        drain_s: Seconds without a conclusion after which no further one is expected.
    """
    if page.in_flight and since_concluded_s < drain_s:
        return False
    return not (page.is_awaiting_evaluation and since_end_s < EVALUATION_DRAIN_S)


class Drain:
    """The time from the end of a run until it has drained. Slow curators may take any time, as long as they conclude.

    Args:
        page: Follows the run.
        session_s: Asks, once the run has ended, for the session time-out of its consumer groups, in seconds.
    """

    def __init__(self, page: RunPage, session_s: Callable[[], float]) -> None:
        self._page, self._session_s = page, session_s
        self._ended_at: float | None = None
        self._in_flight, self._concluded_at = 0, 0.0
        self._drain_s = GROUPS_DRAIN_S

    def is_over(self) -> bool:
        """Return whether the run has drained; raises what `session_s` raises."""
        if self._ended_at is None:
            if not self._page.ended:
                return False
            self._ended_at = time.monotonic()
            self._drain_s = groups_drain_s(self._session_s())
        now = time.monotonic()
        if self._page.in_flight != self._in_flight:
            self._in_flight, self._concluded_at = self._page.in_flight, now
        return is_drained(self._page, now - self._ended_at, now - self._concluded_at, self._drain_s)
