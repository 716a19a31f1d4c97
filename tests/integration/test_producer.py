"""Requests that a broker refuses: the first of two that are on their way, and one that it refuses each time."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from stoppable import until
from tcp_proxy import TcpProxy

from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.kafka.clients import Connection, Outgoing
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.stopwatch import Stopwatch
from headrace.producers.rollout.record_producer import RecordProducer
from headrace.schemas.topics import TopicSpec

PRODUCE = 0
HOLD_S = 20.0
"""How long the first request is kept back at most for a second one to follow it."""


class Spoiling(TcpProxy):
    """Keeps the first Produce request back until there is a second; the broker then finds a wrong checksum in it."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = False
        self.first: bytes | None = None
        self.spoilt = 0

    def _pump(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        if not asks:
            super()._pump(source, sink, asks)
            return
        buffer, held_since = b"", 0.0
        source.settimeout(0.05)
        with suppress(OSError), closing(source), closing(sink):
            while True:
                with suppress(TimeoutError):
                    data = source.recv(65536)
                    if not data:
                        break
                    buffer += data
                while len(buffer) >= 4 and len(buffer) >= (end := 4 + int.from_bytes(buffer[:4])):
                    request, buffer = buffer[:end], buffer[end:]
                    if int.from_bytes(request[4:6]) == PRODUCE and self.armed and self.first is None:
                        self.first, held_since = request, time.monotonic()
                    else:
                        held_since = self._let_go(sink, held_since, request)
                if held_since and time.monotonic() - held_since > HOLD_S:
                    held_since = self._let_go(sink, held_since)

    def _let_go(self, sink: socket.socket, held_since: float, then: bytes = b"") -> float:
        if held_since and self.first is not None:
            spoilt = bytearray(self.first)
            spoilt[-8] ^= 1  # inside the last record; what follows it are empty tags
            sink.sendall(bytes(spoilt))
            self.spoilt += 1
        sink.sendall(then)
        return 0.0


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Spoiling, Connection]]:
    with Spoiling() as between:
        advertised = {"advertised.listeners": f"PLAINTEXT://{between.address}"}
        with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), config=advertised) as server:
            between.target = server.bootstrap
            yield between, Connection(server.bootstrap, compression="none")


@pytest.fixture
def topic(spoilt: tuple[Spoiling, Connection], request: pytest.FixtureRequest) -> str:
    between, connection = spoilt
    between.armed, between.first, between.spoilt = False, None, 0
    name = request.node.name
    ensure_topics(connection, [TopicSpec(name, 2)])
    return name


def values(connection: Connection, topic: str) -> list[bytes]:
    return [message.value for message in read_all(connection, [topic]) if message.partition == 0]


def test_a_worker_sends_a_record_again_that_was_refused_and_reported_as_delivered(
    spoilt: tuple[Spoiling, Connection], topic: str
) -> None:
    between, connection = spoilt
    producer = RecordProducer(connection, "worker", Stopwatch())
    producer.post(Outgoing(topic, b"it is known to the broker, but not of this partition", partition=1)).result(60)
    between.armed = True
    first = producer.post(Outgoing(topic, b"the first record", partition=0))
    until(lambda: between.first is not None, "a request is on its way")
    second = producer.post(Outgoing(topic, b"the second record", partition=0))
    first.result(60)
    second.result(60)

    assert between.spoilt == 1
    assert values(connection, topic) == [b"the second record", b"the first record"]
    assert producer.flush(120) == 0
    producer.close()
