"""Ends a process in which a call of librdkafka hangs, as some calls do (seen: ten minutes, and for ever)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

import structlog

from headrace.infra.process.end_report import end_process

log = structlog.get_logger()

CALL_STUCK_S = 12.0
"""Seconds after which a call counts as stuck for ever."""
WATCH_EVERY_S = 1.0


@dataclass(eq=False, slots=True)
class WatchedCall:
    """A call that has not returned, or a request that has not been answered."""

    doing: str
    begun_s: float
    may_wait: Callable[[], bool] | None
    """Whether the call waits for good reason; it is not counted meanwhile."""
    stuck_s: float = 0.0
    """Seconds for which it has been stuck, as counted by the watch."""


class CallWatch:
    """Watches calls from a thread of its own, which begins with the first call.

    Usually it is the sending of offsets after a broker's restart, whose timeout librdkafka ignores (librdkafka #5456),
    or the commit of a consumer after a freeze of the broker. Nothing is lost: the broker aborts an open transaction,
    and the successor of the process continues from the last commit.

    Args:
        who: Whose calls these are, for the log.
    """

    def __init__(self, who: str) -> None:
        self._who = who
        self._calls: dict[WatchedCall, None] = {}
        self._closed = threading.Event()
        self._starting = threading.Lock()
        self._is_started = False

    @contextmanager
    def watch(self, doing: str, may_wait: Callable[[], bool] | None = None) -> Iterator[None]:
        """Watch the call in this block."""
        call = self.begin(doing, may_wait)
        try:
            yield
        finally:
            self.end(call)

    def begin(self, doing: str, may_wait: Callable[[], bool] | None = None) -> WatchedCall:
        """Watch a request until `end`.

        Args:
            doing: What is done, as the beginning of a sentence.
            may_wait: Asked every second in the thread of the watch: whether the call waits for good reason.
        """
        call = WatchedCall(doing, monotonic(), may_wait)
        self._calls[call] = None
        with self._starting:
            if not self._is_started:
                self._is_started = True
                threading.Thread(target=self._watch, name="call-watch", daemon=True).start()
        return call

    def end(self, call: WatchedCall) -> None:
        """Watch a request no more: it has been answered."""
        self._calls.pop(call, None)

    def close(self) -> None:
        """Watch no more."""
        self._closed.set()

    def _watch(self) -> None:
        looked_s = monotonic()
        while not self._closed.wait(WATCH_EVERY_S):
            step_s, looked_s = min(monotonic() - looked_s, CALL_STUCK_S / 2), monotonic()  # after a SIGSTOP
            for call in list(self._calls):
                self._count(call, step_s)

    def _count(self, call: WatchedCall, step_s: float) -> None:
        if monotonic() - call.begun_s < WATCH_EVERY_S or (call.may_wait is not None and call.may_wait()):
            return
        call.stuck_s += step_s
        if call.stuck_s > CALL_STUCK_S and call in self._calls:
            # A call of the Kafka client did not return: the process ends.
            log.error("call.stuck", who=self._who, doing=call.doing, seconds=CALL_STUCK_S)
            end_process(f"{call.doing} has not returned for {CALL_STUCK_S:g} s: this process ends")
