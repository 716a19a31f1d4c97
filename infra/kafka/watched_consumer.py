"""A consumer whose calls cannot hang for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer

from headrace.infra.kafka.call_watch import CallWatch

CALLS = CallWatch("clients")
"""Watches what clients of this process wait for without a timeout that they always keep."""


class WatchedConsumer(Consumer):
    """A consumer whose calls without a timeout end this process if they hang although Kafka answers others."""

    has_to_wait: Callable[[], bool]
    """Whether Kafka answers nobody at present."""

    def close(self) -> None:
        """Leave the group and close."""
        with CALLS.watch("closing a Kafka consumer", self.has_to_wait):
            super().close()

    def seek(self, *args: Any, **kwargs: Any) -> None:
        """Seek to an offset."""
        with CALLS.watch("seeking to an offset", self.has_to_wait):
            super().seek(*args, **kwargs)
