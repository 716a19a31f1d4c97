"""Finds a stalled worker, so that it can end: its event loop is blocked, or it makes no token.

The supervisor starts the process again. The starts of the tasks that ran then count, so the one that stops every worker
is found as one that kills every worker is.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog

from headrace.infra.errors import HeadraceError
from headrace.producers.rollout.episodes import find_common_wait

log = structlog.get_logger()

WATCHDOG_TURN_S = 1.0
BLOCKED_LIMIT_S = 60.0
"""The event loop may be blocked for so long: a score inside a C extension may never return."""
LEAST_STALL_S = 60.0
SILENT_S = 15.0
"""After so long without a token the status tells where episodes wait."""
LONGEST_STEP_S = 5.0
"""A longer time between two looks counts as this much: the process was suspended."""
EXIT_CODE = 70


def _end() -> None:
    faulthandler.dump_traceback()
    os._exit(EXIT_CODE)


class Stalled(HeadraceError):
    """The worker holds tasks and makes nothing of them; it has to end."""


def compute_stall_limit_s(episode_limit_s: float) -> float:
    """Return how long a worker that holds tasks may make no token: twice the time that an episode may take."""
    return max(2 * episode_limit_s, LEAST_STALL_S)


class StallWatch:
    """Counts the seconds in which a worker that holds tasks made nothing of them. Its clock is the caller's."""

    def __init__(self) -> None:
        self.found = ""
        """Why the worker has to end; empty while it need not."""
        self._made: object = None
        self._looked_s = 0.0
        self._silent_s = 0.0

    def silent_s(self, now_s: float, made: object, *, may_wait: bool) -> float:
        """Return for how long nothing was made.

        Args:
            now_s: Of a monotonic clock.
            made: Changes whenever something is made.
            may_wait: Whether there is nothing to do, or an unreachable server is waited for.
        """
        step_s, self._looked_s = min(now_s - self._looked_s, LONGEST_STEP_S), now_s
        self._silent_s = 0.0 if may_wait or made != self._made else self._silent_s + step_s
        self._made = made
        return self._silent_s

    def describe_silence(self) -> str:
        """Return where episodes wait that have made nothing for a while; empty before that."""
        if self._silent_s < SILENT_S:
            return ""
        return f"no token for {self._silent_s:.0f} s; most episodes wait at {find_common_wait()}"

    def refuse_stall(self, silent_s: float, episode_limit_s: float, open_tasks: int) -> None:
        """Raise Stalled when nothing was made for too long."""
        if silent_s >= compute_stall_limit_s(episode_limit_s):
            self.found = f"no token for {silent_s:.0f} s with {open_tasks} tasks open: this process ends"
            faulthandler.dump_traceback()
            log.error("worker.stalled", why=self.found, remedy="its tasks are started again; one of them may be why")
            raise Stalled(self.found)


class Watchdog(threading.Thread):
    """Counts its own seconds since the last beat, so a suspended process is not taken for a stalled one."""

    def __init__(
        self, limit_s: float = BLOCKED_LIMIT_S, turn_s: float = WATCHDOG_TURN_S, end: Callable[[], None] = _end
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._limit_s, self._turn_s, self._end = limit_s, turn_s, end
        self._beaten, self._over = threading.Event(), threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def beat(self) -> None:
        """Report that the loop goes round."""
        self._beaten.set()

    def stop(self) -> None:
        """End the watch."""
        self._over.set()

    def run(self) -> None:
        """Watch until `stop`."""
        silent_s = 0.0
        while not self._over.wait(self._turn_s):
            silent_s = 0.0 if self._beaten.is_set() else silent_s + self._turn_s
            self._beaten.clear()
            if silent_s >= self._limit_s:
                log.error("worker.stuck", silent_s=silent_s, remedy="the process ends; its tasks are started again")
                self._end()
                return
