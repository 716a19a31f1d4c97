"""The embedded servers: their life, their ends, what they keep; and the object store on a real server."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
import structlog
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.embedded.server_process import FolderTaken, PortTaken, ServerFailed
from headrace.infra.embedded.store_server import EmbeddedStore
from headrace.infra.store.object_store import (
    ObjectCorrupt,
    ObjectMissing,
    ObjectStore,
    StoreAddress,
    StoreDenied,
    StoreUnavailable,
)

QUIET = {"log_level": 0}


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    """A server to stop and kill; started by the test."""
    server = EmbeddedStore(tmp_path / "store")
    yield server
    server.stop()


def make_topic(bootstrap: str, name: str, config: dict[str, str] | None = None) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    client.create_topics([NewTopic(name, 1, 1, config=config or {})])[name].result(120)


def read_all(bootstrap: str, topic: str) -> list[bytes | None]:
    """Every record's value up to the end that the topic has now."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, **QUIET})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    while len(values) < end:
        message = consumer.poll(30)
        assert message is not None, f"{len(values)} of {end} records, then silence"
        assert message.error() is None
        values.append(message.value())
    consumer.close()
    return values


def gone(pid: int, limit_s: float = 120) -> bool:
    """Whether the process ends within the limit."""
    try:
        psutil.Process(pid).wait(limit_s)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


@pytest.mark.servers
def test_a_broker_killed_under_load_keeps_every_acked_record_once(tmp_path: Path, run_name: str) -> None:
    n_records, kill_after = 6_000, 2_000
    acked: list[int] = []

    def on_delivery(error: object, message: Message) -> None:
        assert error is None
        acked.append(int(message.value() or b""))

    with EmbeddedKafka(tmp_path / "kafka") as server:
        make_topic(server.bootstrap, run_name)
        bootstrap, pid = server.bootstrap, server.pid
        assert pid is not None
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})
        for n in range(n_records):
            producer.produce(run_name, str(n).encode(), on_delivery=on_delivery)
            producer.poll(0)
            if n == kill_after:
                while not acked:
                    producer.poll(0.1)
                os.kill(pid, signal.SIGKILL)
                assert gone(pid)
        assert not server.is_alive()
        assert len(acked) < n_records
        server.start()
        assert server.bootstrap == bootstrap
        assert producer.flush(60) == 0
        assert sorted(acked) == list(range(n_records))
        assert [int(value or b"") for value in read_all(bootstrap, run_name)] == list(range(n_records))


@pytest.mark.servers
def test_a_message_of_fifteen_megabytes_passes(bootstrap: str, run_name: str) -> None:
    make_topic(bootstrap, run_name)
    data = os.urandom(15 * 1024 * 1024)
    producer = Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 16 * 1024 * 1024, **QUIET})
    producer.produce(run_name, data)
    assert producer.flush(120) == 0
    assert read_all(bootstrap, run_name) == [data]


@pytest.mark.servers
def test_a_broker_that_cannot_start_tells_its_log_and_the_reason(tmp_path: Path) -> None:
    server = EmbeddedKafka(tmp_path / "kafka", config={"num.io.threads": "zero"})
    with pytest.raises(ServerFailed, match=r"(?s)exited with code 1 .*log ends with:.*num\.io\.threads"):
        server.start()
    assert server.pid is None


@pytest.mark.servers
def test_stopping_leaves_no_process_and_a_start_finds_data_ports_and_keys_again(
    own_store: EmbeddedStore,
) -> None:
    own_store.start()
    endpoint, pid, address = own_store.endpoint, own_store.pid, own_store.address("kept")
    assert pid is not None
    with ObjectStore(address) as store:
        store.ensure_bucket()
        stored = store.put(b"kept", "groups")
    own_store.stop()
    assert not own_store.is_alive()
    assert not psutil.pid_exists(pid)
    assert not any(str(own_store.folder) in " ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"]))
    own_store.start()
    assert own_store.endpoint == endpoint
    assert own_store.address("kept") == address
    with ObjectStore(address) as store:
        assert store.get(stored.key, stored.sha256, stored.size_bytes) == b"kept"


@pytest.mark.servers
def test_the_stores_keys_are_for_their_owner_only_and_in_no_command_line(own_store: EmbeddedStore) -> None:
    own_store.start()
    assert (own_store.folder / "store.json").stat().st_mode & 0o777 == 0o600
    assert own_store.address("any").secret_key not in " ".join(psutil.Process(own_store.pid).cmdline())


@pytest.mark.servers
def test_a_kept_port_that_is_in_use_is_told_with_its_user(own_store: EmbeddedStore) -> None:
    own_store.start()
    port = own_store.port("s3")
    own_store.stop()
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(PortTaken, match=rf"port {port}, .* process {os.getpid()} .*ports\.json"):
            own_store.start()
        (own_store.folder / "ports.json").unlink()
        EmbeddedStore(own_store.folder).start().stop()


@pytest.mark.servers
def test_a_folder_in_use_is_refused_to_a_second_owner(own_store: EmbeddedStore) -> None:
    own_store.start()
    with pytest.raises(FolderTaken, match=f"process {os.getpid()} runs"):
        EmbeddedStore(own_store.folder).start()
    assert own_store.is_alive()


@pytest.mark.servers
def test_a_leftover_of_an_earlier_run_is_recognised_said_and_stopped(own_store: EmbeddedStore) -> None:
    own_store.start()
    pid, endpoint = own_store.pid, own_store.endpoint
    assert pid is not None
    own_store._release()  # as if the owner had gone without its server
    successor = EmbeddedStore(own_store.folder)
    with structlog.testing.capture_logs() as logs:
        successor.start()
    try:
        told = [entry["detail"] for entry in logs if entry["event"] == "server.leftover"]
        assert told == [f"an object store (pid {pid}) of an earlier run still uses {own_store.folder}: stopping it"]
        assert gone(pid)
        assert successor.endpoint == endpoint
    finally:
        successor.stop()


@pytest.mark.servers
def test_another_process_under_a_recorded_pid_is_left_alone(own_store: EmbeddedStore) -> None:
    own_store.folder.mkdir()
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    created = psutil.Process(bystander.pid).create_time()
    (own_store.folder / "server.json").write_text(f'{{"pid": {bystander.pid}, "created": {created}}}')
    own_store.start()
    assert bystander.poll() is None
    bystander.communicate(b"\n")


def test_a_server_ends_with_its_killed_parent(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys\nfrom headrace.infra.embedded.store_server import EmbeddedStore\n"
        f"server = EmbeddedStore(pathlib.Path({str(tmp_path / 'store')!r})).start()\n"
        "sys.stderr.write(f'pid={server.pid}\\n')\ninput()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as parent:
        assert parent.stderr is not None
        lines = iter(parent.stderr.readline, b"")
        pid = next(int(line[4:]) for line in lines if line.startswith(b"pid="))
        assert psutil.pid_exists(pid)
        parent.kill()
    assert gone(pid)


@pytest.mark.servers
def test_a_server_outlives_the_thread_that_started_it(own_store: EmbeddedStore) -> None:
    starter = threading.Thread(target=own_store.start, daemon=True)
    starter.start()
    starter.join()
    with pytest.raises(psutil.TimeoutExpired):
        psutil.Process(own_store.pid).wait(0.5)
    assert own_store.is_alive()


@pytest.mark.servers
def test_a_server_that_does_not_stop_is_killed(own_store: EmbeddedStore) -> None:
    own_store.start()
    pid = own_store.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    with structlog.testing.capture_logs() as logs:
        own_store.stop(timeout_s=0.2)
    assert [entry["event"] for entry in logs] == ["server.killed"]
    assert not psutil.pid_exists(pid)


@pytest.mark.servers
def test_an_object_comes_back_whole_and_as_a_file(store: ObjectStore, tmp_path: Path, run_name: str) -> None:
    data = os.urandom(20 * 1024 * 1024)  # three parts
    stored = store.put(memoryview(data), "groups", ".bin")
    assert stored.key == f"{run_name}/groups/{hashlib.sha256(data).hexdigest()}.bin"
    assert stored.size_bytes == len(data)
    assert store.has_object(stored.key)
    assert store.get(stored.key, stored.sha256, stored.size_bytes) == data
    store.get_to_file(stored.key, stored.sha256, stored.size_bytes, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


@pytest.mark.servers
def test_an_empty_object_is_right(store: ObjectStore) -> None:
    stored = store.put(b"", "groups")
    assert store.get(stored.key, stored.sha256, 0) == b""


@pytest.mark.servers
def test_a_missing_object_is_told(store: ObjectStore, run_name: str) -> None:
    key = store.key("groups", "0" * 64)
    assert not store.has_object(key)
    with pytest.raises(ObjectMissing, match=run_name):
        store.get(key, "0" * 64, 10)


@pytest.mark.servers
def test_a_bucket_without_rights_gives_one_clear_error(store: ObjectStore) -> None:
    stranger = StoreAddress(store.address.endpoint, "headrace-tests", "stranger", "wrong-secret")
    with ObjectStore(stranger) as denied, pytest.raises(StoreDenied, match="'stranger' may not use bucket"):
        denied.ensure_bucket()


def path_of(server: EmbeddedStore, bucket: str, key: str) -> Path:
    """The file of an object; what is changed beside it goes unnoticed once the server was asked for its folder."""
    path = server.folder / "data" / bucket / key
    path.parent.mkdir(parents=True, exist_ok=True)
    if server._settings()["server"] != "rclone":
        pytest.skip("only rclone keeps an object as a plain file")
    return path


def test_a_torn_object_is_refused(store: ObjectStore, store_server: EmbeddedStore, tmp_path: Path) -> None:
    stored = store.put(b"0123456789", "groups")
    path_of(store_server, "headrace-tests", stored.key).write_bytes(b"01234xxxxx")
    with pytest.raises(ObjectCorrupt, match="sha256"):
        store.get(stored.key, stored.sha256, stored.size_bytes)
    with pytest.raises(ObjectCorrupt, match="has 10 bytes, but the record that names it says 11"):
        store.get_to_file(stored.key, stored.sha256, 11, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.servers
def test_a_young_object_is_not_sent_again_and_an_old_one_is(own_store: EmbeddedStore) -> None:
    made: dict[int, tuple[Path, float]] = {}
    for hours in (11, 13):
        content = b"%d hours old" % hours
        file = path_of(own_store, "kept", f"groups/{hashlib.sha256(content).hexdigest()}")
        file.write_bytes(content)
        then = (datetime.now(UTC) - timedelta(hours=hours)).timestamp()
        os.utime(file, (then, then))
        made[hours] = file, then
    with ObjectStore(own_store.start().address("kept")) as store:
        for hours, (file, then) in made.items():
            store.put(b"%d hours old" % hours, "groups")
            assert (file.stat().st_mtime > then + 60) == (hours == 13)


def test_a_store_that_goes_and_comes_back_is_a_pause(own_store: EmbeddedStore) -> None:
    with ObjectStore(own_store.start().address("kept")) as store:
        store.ensure_bucket()
        stored = store.put(b"kept", "groups")
        pid = own_store.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert gone(pid)
        with pytest.raises(StoreUnavailable):
            store.get(stored.key, stored.sha256, stored.size_bytes)
        with pytest.raises(StoreUnavailable):
            store.wait_ready(0.2)
        own_store.start()
        store.wait_ready(60)
        assert store.get(stored.key, stored.sha256, stored.size_bytes) == b"kept"
