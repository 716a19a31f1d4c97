"""Records that a test writes, through one producer a process: a new one waits half a second for its id."""

from __future__ import annotations

from confluent_kafka import Producer

from headrace.infra.kafka.clients import Connection, Outgoing, open_producer
from headrace.infra.run.run import Run

_producers: dict[str, Producer] = {}
"""By the servers' address."""


def say(run: Run | Connection, *outgoing: Outgoing) -> None:
    """Produce, and wait until all is acknowledged."""
    connection = run if isinstance(run, Connection) else run.connection
    if connection.bootstrap not in _producers:
        _producers[connection.bootstrap] = open_producer(connection, "test")
    producer = _producers[connection.bootstrap]
    for one in outgoing:
        value = None if one.is_null else one.value
        while True:
            try:
                producer.produce(one.topic, value, one.key or None, one.partition, headers=list(one.headers))
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(60) == 0
