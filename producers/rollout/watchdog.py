"""Ends a stalled worker: one whose event loop is blocked, or that generates no token. Before that it says where.

The supervisor starts the process again. The starts of its running tasks stay counted, so a task that stalls every
worker is found in the same way as a task that kills every worker.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

import structlog

from headrace.infra.errors import ERROR_MARK, HeadraceError
from headrace.infra.own_frames import locate_thread
from headrace.infra.process.end_report import report_end
from headrace.producers.rollout.play.running_episodes import find_most_common_wait

log = structlog.get_logger()

WATCHDOG_TURN_S = 1.0
BLOCKED_LIMIT_S = 60.0
"""Most seconds for which the event loop may be blocked, for instance by a workflow that computes."""
TOLD_S = 20.0
"""Seconds after which it is told where the event loop is blocked."""
BLOCKED = "blocked for "
"""Beginning of the words about a blocked event loop."""
LEAST_STALL_S = 60.0
SILENT_S = 15.0
"""Seconds without a token after which the worker's status says where episodes wait."""
LONGEST_STEP_S = 5.0
"""A longer time between two looks counts as this many seconds, because the process was suspended."""
EXIT_CODE = 70
STUCK_REMEDY = (
    "no episode can go on until it returns: run what computes or waits for long with `await asyncio.to_thread(...)`, "
    "and give it a time limit"
)


def describe_block(silent_s: float, at: str) -> str:
    """Return that the event loop is blocked, since when, and where."""
    return f"{BLOCKED}{silent_s:.0f} s{f' at {at}' if at else ''}: {STUCK_REMEDY}"


def _kill_process(why: str) -> None:
    faulthandler.dump_traceback()
    report_end(EXIT_CODE, f"{ERROR_MARK}{why}")
    os._exit(EXIT_CODE)


class Stalled(HeadraceError):
    """The worker has open tasks but makes no progress; it has to end."""


def compute_stall_limit_s(episode_limit_s: float) -> float:
    """Return for how many seconds a worker with open tasks may generate no token: twice the episode limit."""
    return max(2 * episode_limit_s, LEAST_STALL_S)


class StallWatch:
    """Counts the seconds for which a worker with open tasks made no progress. The caller gives the time."""

    def __init__(self) -> None:
        self.found = ""
        """Why the worker has to end; empty while it may go on."""
        self._made: object = None
        self._looked_s = 0.0
        self._silent_s = 0.0

    def count_silent_s(self, now_s: float, made: object, *, may_wait: bool) -> float:
        """Return the seconds without progress.

        Args:
            now_s: Of a monotonic clock.
            made: A value that changes with all progress.
            may_wait: Whether there is nothing to do, or the worker waits for an unreachable server.
        """
        step_s, self._looked_s = min(now_s - self._looked_s, LONGEST_STEP_S), now_s
        self._silent_s = 0.0 if may_wait or made != self._made else self._silent_s + step_s
        self._made = made
        return self._silent_s

    def describe_silence(self) -> str:
        """Return where silent episodes wait; empty while there is progress."""
        if self._silent_s < SILENT_S:
            return ""
        at = find_most_common_wait()
        return f"no token for {self._silent_s:.0f} s; {f'most episodes wait at {at}' if at else 'no episode runs'}"

    def refuse_stall(self, silent_s: float, episode_limit_s: float, open_tasks: int) -> None:
        """Raise Stalled after too long a time without progress."""
        if silent_s >= compute_stall_limit_s(episode_limit_s):
            self.found = f"no token for {silent_s:.0f} s, although tasks are open ({open_tasks}): this process ends"
            faulthandler.dump_traceback()
            # The open tasks got no token for too long; the process ends.
            log.error(
                "worker.stalled",
                why=self.found,
                remedy="the worker's tasks are started again; one of the tasks may be the cause",
            )
            raise Stalled(self.found)


class Watchdog(threading.Thread):
    """Ends the process when beats stop. It counts seconds itself, so that a suspended process is not ended.

    Args:
        tell: Called once per turn, in this thread, from TOLD_S on, with the silent seconds and the place where the
            thread that built the watchdog is.
        limit_s: Silent seconds after which the process ends.
        turn_s: Seconds between two looks.
        end: Ends the process; gets the reason.
    """

    def __init__(
        self,
        tell: Callable[[float, str], None] = lambda _silent_s, _at: None,
        limit_s: float = BLOCKED_LIMIT_S,
        turn_s: float = WATCHDOG_TURN_S,
        end: Callable[[str], None] = _kill_process,
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._tell, self._limit_s, self._turn_s, self._kill_process = tell, limit_s, turn_s, end
        self._watched = threading.get_ident()
        self._beaten, self._over = threading.Event(), threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def beat(self) -> None:
        """Report that the event loop runs."""
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
            if silent_s >= min(TOLD_S, self._limit_s):
                at = locate_thread(self._watched)
                with suppress(Exception):  # whatever the hearer raises, the watch goes on
                    self._tell(silent_s, at)
                if silent_s >= self._limit_s:
                    why = describe_block(silent_s, at)
                    # The event loop is blocked for too long; the process ends.
                    log.error("worker.stuck", silent_s=silent_s, why=why, remedy=STUCK_REMEDY)
                    self._kill_process(why)
                    return
