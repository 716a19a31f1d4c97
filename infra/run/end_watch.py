"""Logs the end of the run, because a component started by hand outlives it."""

from __future__ import annotations

import time

import structlog

from headrace.infra.errors import Unavailable
from headrace.infra.run.run import RecipeNews, Run

log = structlog.get_logger()

END_LOOK_EVERY_S = 5.0


class EndWatch:
    """Checks the recipe topic from time to time, and logs each end of the run once.

    Args:
        run: The run.
        now: What this component still does, and when to stop it.
        whose: Further fields of the log line.
    """

    def __init__(self, run: Run, now: str, **whose: str) -> None:
        self._run, self._now, self._whose = run, now, whose
        self._news = RecipeNews(run.address, run.recipe_end)
        self._ended = run.ended
        self._is_logged = False
        self._due = 0.0

    def look(self) -> None:
        """Check if it is time. An unreachable Kafka is ignored here, because the run loop reports it."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + END_LOOK_EVERY_S
        try:
            found = [one.ended for one in self._news.look() if one.run_id == self._run.run_id]
        except Unavailable:
            return
        for ended in found:  # the newest revision decides, because a run may continue
            self._is_logged = self._is_logged and ended == self._ended
            self._ended = ended
        if self._ended and not self._is_logged:
            self._is_logged = True
            # `now` says what the process still does, and when it may be stopped.
            log.info("run.over", **self._whose, why=self._ended, now=self._now)
