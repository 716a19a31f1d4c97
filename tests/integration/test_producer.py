"""A producer whose first request the broker refuses while a second one is on its way."""

from __future__ import annotations

import socket
import time
from contextlib import closing, suppress
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from stoppable import until
from tcp_proxy import TcpProxy

from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.kafka.clients import Connection, open_producer
from headrace.infra.kafka.topic_reader import read_all

PRODUCE = 0
HOLD_S = 2.0
"""How long the first request is kept back for a second one to follow it."""


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


def test_a_record_that_was_refused_is_not_held_for_delivered_because_a_later_one_was(tmp_path: Path) -> None:
    with Spoiling() as between:
        advertised = {"advertised.listeners": f"PLAINTEXT://{between.address}"}
        with EmbeddedKafka(tmp_path / "kafka", config=advertised) as server:
            between.target = server.bootstrap
            admin = AdminClient({"bootstrap.servers": server.bootstrap})
            admin.create_topics([NewTopic("plain", 2, 1)])["plain"].result(30)
            connection = Connection(server.bootstrap, compression="none")
            producer = open_producer(connection, "two")
            producer.produce("plain", b"it is known to the broker, but not of this partition", partition=1)
            assert producer.flush(60) == 0
            between.armed = True
            delivered: list[bytes | None] = []
            for value in (b"the first record", b"the second record"):
                producer.produce("plain", value, partition=0, on_delivery=lambda _, raw: delivered.append(raw.value()))
                until(lambda: between.first is not None, "a request is on its way")
            assert producer.flush(60) == 0
            assert between.spoilt == 1
            found = [message.value for message in read_all(connection, ["plain"]) if message.partition == 0]
    assert delivered == [b"the first record", b"the second record"]
    assert found == delivered
