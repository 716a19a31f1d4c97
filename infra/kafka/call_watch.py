"""Ends a process whose call of librdkafka hangs beyond its timeout, as some calls do (seen: ten minutes)."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from headrace.infra.process.end_report import end_process

log = structlog.get_logger()

CALL_STUCK_S = 12.0
"""Seconds after which a call counts as stuck for ever."""
WATCH_EVERY_S = 1.0


class CallWatch:
    """Watches the calls of a transactional producer from a thread of its own.

    Usually it is the sending of offsets after a broker's restart, whose timeout librdkafka ignores (librdkafka #5456).
    Nothing is lost: the broker aborts the transaction, and the successor continues from the last commit.
    """

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id
        self._called_at, self._calling = math.inf, ""
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="transaction-watch", daemon=True).start()

    @contextmanager
    def watch(self, doing: str) -> Iterator[None]:
        """Watch the call in this block."""
        self._called_at, self._calling = time.monotonic(), doing
        try:
            yield
        finally:
            self._called_at = math.inf

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(WATCH_EVERY_S):
            if time.monotonic() - self._called_at > CALL_STUCK_S:
                who = self._transactional_id
                log.error("transaction.stuck", transactional_id=who, doing=self._calling, seconds=CALL_STUCK_S)
                end_process(f"{self._calling} has not returned for {CALL_STUCK_S:g} s: this process ends")
