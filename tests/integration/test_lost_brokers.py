"""Clients that a stopping broker has told that there are no brokers: some of them never ask anybody again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from socket import socket

import pytest
from confluent_kafka import KafkaError, KafkaException
from stoppable import until
from tcp_proxy import TcpProxy

from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.kafka import broker_contact
from headrace.infra.kafka.broker_contact import AnyClient
from headrace.infra.kafka.clients import Connection, Outgoing
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.kafka.topic_reader import TopicReader
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.schemas.topics import TopicSpec

METADATA, LEADER_NOT_AVAILABLE = 3, 5
AT_MOST_S = 180.0
"""Of a hundred times that a reader is told so, it loses its brokers about twice."""
READERS = 24


class Forgetful(TcpProxy):
    """Takes the brokers out of what a broker says of its cluster, as a broker does that stops in good order."""

    def __init__(self) -> None:
        super().__init__()
        self.forgets = False
        self._asked: dict[tuple[int, bytes], int] = {}
        """The API of each request under way, by connection and correlation id."""

    def _pump(self, source: socket, sink: socket, asks: bool) -> None:
        client, buffer = id(source if asks else sink), b""
        with suppress(OSError), closing(source), closing(sink):
            while data := source.recv(65536):
                buffer += data
                while len(buffer) >= 4 and len(buffer) >= (end := 4 + int.from_bytes(buffer[:4])):
                    frame, buffer = buffer[:end], buffer[end:]
                    if asks:
                        self._asked[client, frame[8:12]] = int.from_bytes(frame[4:6])
                    elif self._asked.pop((client, frame[4:8]), None) == METADATA and self.forgets:
                        frame = without_brokers(frame)
                    sink.sendall(frame)


def without_brokers(frame: bytes) -> bytes:
    """Take brokers and leaders out of a Metadata response of version 10 to 13 (KIP-482, KIP-516); lists are short."""
    at = 14
    for _ in range(frame[13] - 1):
        at += 4  # id
        at += frame[at] + 4  # host, port
        at += max(1, frame[at]) + 1  # rack, tags
    rest, at = bytearray(frame[at:]), 0
    at += max(1, rest[at]) + 4  # cluster, controller
    topics, at = rest[at] - 1, at + 1
    for _ in range(topics):
        at += 2
        at += max(1, rest[at]) + 16 + 1  # name, id, whether it is internal
        partitions, at = rest[at] - 1, at + 1
        for _ in range(partitions):
            rest[at : at + 2] = LEADER_NOT_AVAILABLE.to_bytes(2)
            rest[at + 6 : at + 10] = b"\xff" * 4
            at += 14
            for _ in range(3):  # replicas
                at += 1 + 4 * (rest[at] - 1)
            at += 1
        at += 5
    body = frame[4:13] + b"\1" + rest
    return len(body).to_bytes(4) + body


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Forgetful, Connection]]:
    with Forgetful() as between:
        advertised = {"advertised.listeners": f"PLAINTEXT://{between.address}"}
        with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), config=advertised) as server:
            between.target = server.bootstrap
            yield between, Connection(between.address)


def knows_a_broker(client: AnyClient) -> bool:
    try:
        client.list_topics("a.weights", timeout=0.3)
    except KafkaException as error:
        return bool(error.args[0].code() != KafkaError._TRANSPORT)
    return True


@pytest.mark.kafka
def test_a_reader_that_was_told_that_there_is_no_broker_reads_on(
    forgetful: tuple[Forgetful, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_contact, "LOOK_EVERY_S", 0.3)
    between, connection = forgetful
    ensure_topics(connection, [TopicSpec("a.weights", 1)])
    often = replace(connection, client={"topic.metadata.refresh.interval.ms": "300"})
    with ExitStack() as opened:
        readers = [opened.enter_context(TopicReader(often, {("a.weights", 0): 0})) for _ in range(READERS)]

        def read_for(seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                for reader in readers:
                    reader._consumer.consume(1, 0.001)  # not by `poll`, which would mend it

        until(lambda: all(knows_a_broker(one._consumer) for one in readers), "all readers are connected")
        lost: list[TopicReader] = []
        begin = time.monotonic()
        while not lost:
            assert time.monotonic() - begin < AT_MOST_S, "no reader has lost its brokers"
            between.forgets = True
            read_for(0.35)
            between.forgets = False
            read_for(0.5)  # only a client that knows a broker can lose it
            lost = [one for one in readers if not knows_a_broker(one._consumer)]

        with closing(TransactionalWriter(connection, "a.train")) as writer:
            writer.begin()
            writer.produce([Outgoing("a.weights", b"a version", partition=0)])
            writer.commit()
        found: list[bytes] = []
        until(lambda: found.extend(one.value for one in lost[0].poll()) or found, "the reader reads on")
        assert found == [b"a version"]
