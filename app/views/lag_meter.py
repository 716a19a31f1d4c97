"""Measures the lag of a run for its page."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import structlog

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.run.run import Run
from headrace.ops.figures.figures import measure_lags

LAG_S = 4.0
log = structlog.get_logger()


class LagMeter:
    """Asks the broker for the lag now and then, in a thread of its own: an unreachable broker delays nothing else."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._stop = threading.Event()
        self.positions: Mapping[PartitionId, int] = {}
        """Next offsets of the curated topics, as the trainers last reported."""
        self.newest: Mapping[str, int] = {}
        """Topic to unread records, some seconds old."""
        self._thread = threading.Thread(target=self._measure_until_stopped, name="lag-meter", daemon=True)
        self._thread.start()

    def _measure_until_stopped(self) -> None:
        while not self._stop.wait(LAG_S):
            try:
                self.newest = measure_lags(self._run, self.positions)
            except HeadraceError as error:
                # The lag of a consumer group cannot be read now.
                log.debug("page.no_lag", why=str(error))

    def close(self) -> None:
        """Stop asking; a request in flight still finishes."""
        self._stop.set()
