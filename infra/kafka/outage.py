"""Notes that a client's brokers were all away."""

from __future__ import annotations

from confluent_kafka import KafkaError


class Outage:
    """What a client reports of its brokers outside of calls. The client keeps it, so it must not refer to its owner."""

    def __init__(self) -> None:
        self.is_noted = False
        """Whether all brokers were down since this was last set to False."""

    def note(self, error: KafkaError) -> None:
        """Take in a report."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
            self.is_noted = True
