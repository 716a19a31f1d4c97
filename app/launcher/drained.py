"""When a run has drained, and the interface of the page that the launcher asks for that."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from headrace.infra.errors import HeadraceError
from headrace.infra.inflection import inflect

GROUPS_DRAIN_S = 30.0
"""Seconds after the end of a run: workers conclude their groups within 10 s, and another worker takes the tasks of a
killed one after 8 s."""
AFTER_SESSION_S = 20.0
"""Seconds that the drain still takes once another worker has the tasks of a dead one."""
EVALUATION_DRAIN_S = 60.0
"""Seconds without an episode, added to the limit of an episode, after which no evaluation is expected any more. Within
them another worker takes the tasks of a killed one."""
STARTS_WITHIN_S = 1800.0
"""Seconds after the end for which a starting worker is waited for, because it may be loading a large model."""


class AllFailed(HeadraceError):
    """No episode has succeeded for as long as the recipe allows."""


class RunPage(Protocol):
    """Follows a run's topics and shows them."""

    def turn(self, timeout_s: float) -> None:
        """Read what is new, waiting at most that long for it, and show it."""

    @property
    def ended(self) -> str:
        """Why the run is over; empty while it is running."""

    @property
    def in_flight(self) -> int:
        """Number of tasks that are issued and not concluded, over all policies and shadows."""

    @property
    def awaited_evaluations(self) -> tuple[str, ...]:
        """Evaluations of last versions that are still to come, in words."""

    @property
    def work(self) -> object:
        """Work of workers and evaluator: the value changes with every episode and group that ends."""

    @property
    def has_starting_worker(self) -> bool:
        """Whether a worker is starting and plays no episode yet."""

    @property
    def progress(self) -> object:
        """Progress of the run: the value changes when the run has progressed."""

    @property
    def standstill(self) -> str:
        """Why the run makes no further version; empty once it has ended."""

    @property
    def hopeless(self) -> str:
        """Why to give up the run (no episode has ever succeeded); empty otherwise."""

    def close(self) -> None:
        """Restore the terminal."""


def compute_groups_drain_s(session_s: float) -> float:
    """Return how long groups may still arrive after a run's end, in seconds.

    If a worker is killed at the end, another takes its tasks only after the session time-out of the consumer group:
    8 s on the embedded broker, mostly 45 s on a cluster.
    """
    return max(GROUPS_DRAIN_S, session_s + AFTER_SESSION_S)


class Drain:
    """The time from the end of a run until it has drained. What is slow may take any time, as long as it progresses.

    The time in which a server is away does not count: nothing can progress then.

    Args:
        page: Follows the run.
        session_s: Asks, once the run has ended, for the session time-out of its consumer groups, in seconds.
        episode_limit_s: Seconds that an episode may take; an evaluation may show no progress for so long.
        is_answering: Asks both servers before the run is given up, because an outage is noticed only after a while.
    """

    def __init__(
        self,
        page: RunPage,
        session_s: Callable[[], float],
        episode_limit_s: float,
        is_answering: Callable[[], bool] = lambda: True,
    ) -> None:
        self._page, self._session_s, self._is_answering = page, session_s, is_answering
        self._ended_at: float | None = None
        self._in_flight, self._concluded_at = 0, 0.0
        self._work: object = None
        self._worked_at = 0.0
        self._groups_s, self._evaluation_s = GROUPS_DRAIN_S, EVALUATION_DRAIN_S + episode_limit_s

    def is_over(self) -> bool:
        """Return whether the run has drained, or nothing came for too long; raises what `session_s` raises."""
        if self._ended_at is None:
            if not self._page.ended:
                return False
            self._ended_at = time.monotonic()
            self._groups_s = compute_groups_drain_s(self._session_s())
        if not self._page.in_flight and not self._page.awaited_evaluations:
            return True
        if self._has_time_left():
            return False
        if self._is_answering():
            return True
        self.restart_clocks()
        return False

    def restart_clocks(self) -> None:
        """Count the time from now on, because a server was away until now, and nothing could progress."""
        if self._ended_at is not None:
            self._ended_at = self._concluded_at = self._worked_at = time.monotonic()

    def _has_time_left(self) -> bool:
        now = time.monotonic()
        if self._page.in_flight != self._in_flight:
            self._in_flight, self._concluded_at = self._page.in_flight, now
        if self._page.in_flight and now - self._concluded_at < self._groups_s:
            return True
        return bool(self._page.awaited_evaluations) and self._can_be_evaluated(now)

    def _can_be_evaluated(self, now: float) -> bool:
        """Return whether an evaluation has progressed lately, or a worker that could play it still starts."""
        assert self._ended_at is not None  # noqa: S101 - set by the only caller
        starts = self._page.has_starting_worker and now - self._ended_at < STARTS_WITHIN_S
        if starts or self._page.work != self._work:
            self._work, self._worked_at = self._page.work, now
        return now - self._worked_at < self._evaluation_s


def describe_rest(page: RunPage) -> str:
    """Return what is still missing of a run that is no longer waited for, in words; empty if it has drained."""
    groups = f"{page.in_flight} {inflect(page.in_flight, 'group is', 'groups are')}"
    rest = [f"{groups} still in flight"] if page.in_flight else []
    if page.awaited_evaluations:
        rest.append(f"the last version is not evaluated ({', '.join(page.awaited_evaluations)})")
    if not rest:
        return ""
    return f"the run ended some time ago, but {' and '.join(rest)}: give the same command again to finish the rest"
