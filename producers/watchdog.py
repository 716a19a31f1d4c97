"""Ends a process whose event loop stands still: something in it, say a score inside a C extension, never returns.

The supervisor starts the process again; the tasks that ran then were started once more, run one at a time, and the one
that stops every worker is found by its count.
"""

from __future__ import annotations

import faulthandler
import os
import threading
from collections.abc import Callable

import structlog

log = structlog.get_logger()

TURN_S = 1.0
LIMIT_S = 60.0
EXIT_CODE = 70


def _end() -> None:
    faulthandler.dump_traceback()
    os._exit(EXIT_CODE)


class Watchdog(threading.Thread):
    """Counts its own seconds since the last beat, so a suspended process is not taken for one that stands still."""

    def __init__(self, limit_s: float = LIMIT_S, turn_s: float = TURN_S, end: Callable[[], None] = _end) -> None:
        super().__init__(name="watchdog", daemon=True)
        self._limit_s, self._turn_s, self._end = limit_s, turn_s, end
        self._beaten, self._over = threading.Event(), threading.Event()

    def beat(self) -> None:
        """Say that the loop goes round."""
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
