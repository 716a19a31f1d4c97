"""Logs the reports that librdkafka makes outside its calls, which it would write to standard error."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger()

REPEAT_S = 30.0
"""Seconds between two lines of one error code: a refused client reports several times a second."""


class ClientReports:
    """Logs reports of clients, at most one line per error code in REPEAT_S. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._logging = clock, threading.Lock()
        self._logged: dict[str, float] = {}
        self._times: dict[str, int] = {}

    def take(self, code: str, error: str) -> None:
        """Log a report, or count it for the next line of its code."""
        with self._logging:
            now, times = self._clock(), self._times.get(code, 0) + 1
            is_due = code not in self._logged or now - self._logged[code] >= REPEAT_S
            self._times[code] = 0 if is_due else times
            if is_due:
                self._logged[code] = now
        if is_due:
            # The Kafka client reports an error; `times` counts its reports of one code.
            log.warning("kafka.error", code=code, error=error, times=times)


REPORTS = ClientReports()


class _LineHandler(logging.Handler):
    """Takes librdkafka's lines, `FACILITY [client] text`."""

    def emit(self, record: logging.LogRecord) -> None:
        code, _, error = record.getMessage().partition(" ")
        REPORTS.take(code, error)


LINES = logging.getLogger("librdkafka")
"""For a client's `logger`: poll() passes on the lines that librdkafka would write to standard error."""
LINES.addHandler(_LineHandler())
LINES.setLevel(logging.DEBUG)
LINES.propagate = False
