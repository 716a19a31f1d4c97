"""A transaction that its coordinator aborted and left without a marker: it ends as aborted, and is never committed."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.kafka.clients import Connection, Outgoing
from headrace.infra.kafka.cluster_topics import find_held_back
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.kafka.transactions import TransactionalWriter

QUICK = {"transaction.timeout.ms": "1000"}
AT_ONCE = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1"}
"""The coordinator looks for overdue transactions while its broker still starts: then it forgets their markers."""
MOST_STARTS = 8
"""It does so at about every second start."""


def hanging(server: EmbeddedKafka) -> tuple[Connection, str]:
    """Kill a broker in the middle of a transaction until one hangs; return where: its id is the topic's name."""
    for attempt in range(MOST_STARTS):
        connection, name = Connection(server.bootstrap, QUICK), f"run-{attempt}.batches"
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(120)
        writer = TransactionalWriter(connection, name)
        writer.begin()
        writer.produce([Outgoing(name, b"aborted", partition=0)])
        writer.flush()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        server.stop()
        server.start()
        TransactionalWriter(connection, name).close()
        if find_held_back(connection, [name]) and "can be skipped" in (server.folder / "kafka.log").read_text():
            return connection, name
    pytest.fail(f"no transaction hung in {MOST_STARTS} starts: does this Kafka write the markers now?")


@pytest.mark.kafka
def test_what_hangs_is_ended_before_anything_is_written_and_never_committed_with_it(tmp_path: Path) -> None:
    with EmbeddedKafka(tmp_path / "kafka", config=AT_ONCE) as server:
        connection, topic = hanging(server)
        with closing(TransactionalWriter(connection, topic, [topic, "another that is not there"])) as writer:
            writer.begin()
            writer.produce([Outgoing(topic, b"committed", partition=0)])
            writer.commit()
        assert [message.value for message in read_all(connection, [topic])] == [b"committed"]
        assert find_held_back(connection, [topic]) == []
