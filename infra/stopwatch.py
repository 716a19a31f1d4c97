"""Measures a loop's wall time by activity, for `log_share`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

LOG_ACTIVITIES = ("encode", "decode", "produce", "consume", "commit")
"""Activities of the Kafka log. Waiting for records is separate, as `wait`."""


class Stopwatch:
    """Adds up wall seconds by activity; one per thread. A block inside a block counts to the inner activity only."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner = [0.0]

    @contextmanager
    def measure(self, activity: str) -> Iterator[None]:
        """Count the block to an activity."""
        begin = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            elapsed = time.perf_counter() - begin
            self.seconds[activity] += elapsed - self._inner.pop()
            self._inner[-1] += elapsed


def compute_log_share(seconds: Mapping[str, float]) -> float:
    """Return Kafka's share of all time without waiting; 0 if nothing was measured."""
    busy = sum(spent for activity, spent in seconds.items() if activity != "wait")
    return sum(seconds.get(activity, 0.0) for activity in LOG_ACTIVITIES) / busy if busy else 0.0
