"""Faults between clients and servers: whatever befalls Kafka or MinIO, every record is there once and all goes on.

One component reads from Kafka, writes to MinIO, and answers in transactions, through all faults, one after the other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from faults import FAULTS, LATENCY_S
from servers import Server
from storing_component import connection

from headrace.infra.environment import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
from headrace.infra.errors import Unavailable
from headrace.infra.kafka.clients import Connection, Message, open_producer
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.store.object_store import ObjectStore, StoreAddress, StoreUnavailable
from headrace.schemas.topics import TopicSpec

log = structlog.get_logger()

HERE = Path(__file__).parent
PARTITIONS = 4
RATE_PER_S = 20
FAULT_S = 2.0
ASK_S = 2.0
LATE_ASK_S = 20.0
"""A client asks several times before it has what it wants, and every answer is late."""
PATIENCE_S = 240.0


class Traffic:
    """Numbered records, sent at a steady rate whatever happens, and what the component made of them."""

    def __init__(self, link: Connection, run: str, store: ObjectStore) -> None:
        self.link, self.run, self.store = link, run, store
        self.sent = 0
        self.objects_read = 0
        self._producer = open_producer(link, "traffic")

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Send for as long as the context lasts."""
        stop = threading.Event()

        def send() -> None:
            while not stop.wait(1 / RATE_PER_S):
                self._producer.produce(f"{self.run}.in", str(self.sent).encode(), partition=self.sent % PARTITIONS)
                self._producer.poll(0)
                self.sent += 1

        thread = threading.Thread(target=send, name="traffic")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        assert self._producer.flush(PATIENCE_S) == 0

    def answers(self) -> list[Message]:
        return list(read_all(self.link, [f"{self.run}.out"]))

    def answered_after(self, n_sent: int) -> list[Message]:
        """Every committed answer, once there is one for each of the first `n_sent` records."""
        end, found = time.monotonic() + PATIENCE_S, list[Message]()
        while True:
            with suppress(Unavailable):  # a broker that is just back
                found = self.answers()
                if len(found) >= n_sent:
                    return found
            assert time.monotonic() < end, f"{len(found)} of {n_sent} records were answered within {PATIENCE_S} s"
            time.sleep(0.5)


@pytest.fixture(scope="module")
def traffic(
    bootstrap: str, minio_server: tuple[Server, StoreAddress], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Traffic]:
    run, link, address = "faults", connection(bootstrap), minio_server[1]
    specs = [TopicSpec(f"{run}.{name}", PARTITIONS) for name in ("in", "out")]
    ensure_topics(link, [*specs, TopicSpec(f"{run}.state", 1, {"cleanup.policy": "compact"})])
    command = [sys.executable, str(HERE / "storing_component.py"), bootstrap, run, address.to_url()]
    variables = {
        ACCESS_KEY_VARIABLE: address.access_key,
        SECRET_KEY_VARIABLE: address.secret_key,
        "PYTHONPATH": os.pathsep.join([str(HERE.with_name("integration")), os.environ.get("PYTHONPATH", "")]),
    }
    told = tmp_path_factory.mktemp("faults") / "component.log"
    with ObjectStore(address) as store, kept_running(command, variables, told):
        yield Traffic(link, run, store)
    sys.stderr.write(told.read_text())


@contextmanager
def kept_running(command: list[str], variables: dict[str, str], output: Path) -> Iterator[None]:
    """Start a process, and again whenever it ends."""
    stop = threading.Event()

    def keep() -> None:
        while not stop.is_set():
            with (
                output.open("ab") as file,
                subprocess.Popen(command, env={**os.environ, **variables}, stdout=file, stderr=file) as process,
            ):
                while process.poll() is None and not stop.wait(0.1):
                    pass
                process.kill()

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def ask(name: str, server: Server, store: ObjectStore, limit_s: float) -> None:
    """Ask a server something, by connections of our own."""
    if name == "kafka":
        AdminClient({"bootstrap.servers": server.link.address, "log_level": 0}).list_topics(timeout=limit_s)
    else:
        with ObjectStore(store.address, timeout_s=limit_s) as fresh:
            fresh.has_object(fresh.key("values", "0" * 64))


def felt(fault: str, asking: Callable[[float], None]) -> bool:
    """Whether a client can tell: an answer comes late, or none comes."""
    began = time.monotonic()
    try:
        asking(LATE_ASK_S if fault == "late" else ASK_S)
    except (KafkaException, StoreUnavailable):
        return fault != "late"
    return fault == "late" and time.monotonic() - began > LATENCY_S


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["kafka", "minio"])
def test_every_record_is_answered_once_and_in_order_over(
    name: str, fault: str, traffic: Traffic, kafka_server: Server, minio_server: tuple[Server, StoreAddress]
) -> None:
    server = kafka_server if name == "kafka" else minio_server[0]
    with traffic.flowing():
        before = traffic.answered_after(traffic.sent + 1)
        with FAULTS[fault](server):
            assert felt(fault, lambda limit_s: ask(name, server, traffic.store, limit_s))
            time.sleep(FAULT_S)  # the fault itself, not a wait for something
        healed = time.monotonic()
    answers = traffic.answered_after(traffic.sent)
    caught_up_s = round(time.monotonic() - healed, 1)

    assert len(answers) > len(before)
    by_partition = defaultdict(list)
    for message in answers:
        by_partition[message.partition].append([int(word) for word in message.value.split()[:2]])
    for partition, pairs in by_partition.items():
        assert pairs == [[partition + PARTITIONS * i, i + 1] for i in range(len(pairs))]
    for message in answers[traffic.objects_read :]:
        value, _, key, sha256, size = message.value.decode().split()
        assert traffic.store.get(key, sha256, int(size)) == value.encode() * 100
    traffic.objects_read = len(answers)
    log.info("fault.over", server=name, fault=fault, caught_up_s=caught_up_s)
