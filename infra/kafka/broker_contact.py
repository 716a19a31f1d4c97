"""Finds a client that has lost every broker, and would stand still for ever.

When the only broker of a cluster stops in good order, or continues after a freeze, it answers for some milliseconds
that the cluster has no brokers. A client that asks meanwhile forgets every broker. About one in fifty of those then
never asks the bootstrap servers again, and reports nothing (seen with librdkafka 2.16; librdkafka #5301 and #5606).
Only a new client goes on.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException

from headrace.infra.kafka.clients import Connection, is_answering
from headrace.infra.process.signals import MustRestart

LOOK_EVERY_S = 5.0
"""Seconds without an answer before the first look, and between looks."""
LOST_AFTER = 2
"""Looks in a row without a broker: a client that is just connecting again has one by the second look."""
ASK_S = 1.0


class AnyClient(Protocol):
    """A consumer or producer."""

    def list_topics(self, *args: Any, **kwargs: Any) -> Any:
        """Return the cluster's metadata."""
        ...


class BrokerContact:
    """Looks now and then whether a silent client still knows a broker. Called by the thread that polls the client.

    A look costs one small request. It takes up to twice ASK_S while no broker is reachable.

    Args:
        client: The client.
        connection: Its cluster.
        topic: A topic that a consumer reads. A producer must not ask for one by name, which might create it.
    """

    def __init__(self, client: AnyClient, connection: Connection, topic: str = "") -> None:
        self._client, self._connection, self._topic = client, connection, topic
        self._missed = 0
        self._look_at = time.monotonic() + LOOK_EVERY_S

    def note_answer(self) -> None:
        """Note that the client got something from a broker."""
        self._missed, self._look_at = 0, time.monotonic() + LOOK_EVERY_S

    def has_lost_brokers(self) -> bool:
        """Look if it is time; return whether the client knows no broker any more, although other clients do."""
        if time.monotonic() < self._look_at:
            return False
        self._missed = self._missed + 1 if self._is_without_broker() and is_answering(self._connection, ASK_S) else 0
        self._look_at = time.monotonic() + LOOK_EVERY_S
        return self._missed >= LOST_AFTER

    @property
    def is_in_doubt(self) -> bool:
        """Whether the last look found no broker."""
        return self._missed > 0

    def refuse_loss(self, *, is_answered: bool, doing: str) -> None:
        """Take in whether the client got something. Raises MustRestart if it has lost every broker."""
        if is_answered:
            self.note_answer()
        elif self.has_lost_brokers():
            raise MustRestart(
                f"{doing}: the Kafka client has lost every broker, although Kafka can be reached, and does not find "
                "one again. A component starts again by itself; give a command again"
            )

    def _is_without_broker(self) -> bool:
        """Tell whether it has no broker to ask; one that is slow or frozen gives another error."""
        try:
            self._client.list_topics(self._topic or None, timeout=ASK_S)
        except KafkaException as error:
            return bool(error.args[0].code() == KafkaError._TRANSPORT)  # noqa: SLF001
        return False
