"""The run loop on a real broker: exactly once over crashes, rebalances and aborted transactions."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from counting_component import Counter, membership
from patience import PATIENCE_S
from said import say

from headrace.infra.errors import Unavailable
from headrace.infra.kafka import topic_reader
from headrace.infra.kafka.clients import (
    Connection,
    Fenced,
    LogTruncated,
    Message,
    Outgoing,
    open_consumer,
)
from headrace.infra.kafka.group_offsets import fetch_committed_offsets
from headrace.infra.kafka.run_loop import run_loop
from headrace.infra.kafka.topic_admin import TopicDiffers, ensure_topics
from headrace.infra.kafka.topic_reader import TopicReader, find_start_positions, read_all, read_one
from headrace.infra.kafka.transactions import Aborted, TransactionalWriter
from headrace.infra.run.group_consumer import GroupConsumer
from headrace.infra.stopwatch import Stopwatch
from headrace.schemas.topics import TopicSpec

PARTITIONS = 4
COMPONENT = Path(__file__).with_name("counting_component.py")


@pytest.fixture
def connection(bootstrap: str, run_name: str) -> Connection:
    found = Connection(bootstrap)
    specs = [TopicSpec(f"{run_name}.{name}", PARTITIONS) for name in ("in", "out")]
    ensure_topics(found, [*specs, TopicSpec(f"{run_name}.state", 1, {"cleanup.policy": "compact"})])
    return found


@pytest.fixture
def spawn(bootstrap: str, run_name: str) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(slot: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, str(COMPONENT), bootstrap, run_name, slot]))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def produce(connection: Connection, topic: str, values: range) -> None:
    say(connection, *(Outgoing(topic, str(value).encode(), partition=value % PARTITIONS) for value in values))


def counted(connection: Connection, topic: str) -> dict[int, list[tuple[int, int]]]:
    """Partition to its (value, count) pairs in order."""
    found = defaultdict(list)
    for message in read_all(connection, [topic]):
        value, count = message.value.split()
        found[message.partition].append((int(value), int(count)))
    return found


def exactly_once(n: int) -> dict[int, list[tuple[int, int]]]:
    return {p: [(value, i + 1) for i, value in enumerate(range(p, n, PARTITIONS))] for p in range(PARTITIONS)}


def until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.05)


def total(connection: Connection, topic: str) -> int:
    return sum(len(pairs) for pairs in counted(connection, topic).values())


def test_every_record_is_counted_exactly_once_over_kills_and_joins(
    connection: Connection, run_name: str, spawn: Callable[[str], subprocess.Popen[bytes]]
) -> None:
    out, n = f"{run_name}.out", 1200
    first = spawn("a")
    produce(connection, f"{run_name}.in", range(400))
    until(lambda: total(connection, out) >= 200)
    first.kill()
    spawn("a")
    spawn("b")
    produce(connection, f"{run_name}.in", range(400, 800))
    until(lambda: total(connection, out) >= 600)
    third = spawn("c")
    produce(connection, f"{run_name}.in", range(800, n))
    third.send_signal(signal.SIGTERM)
    until(lambda: total(connection, out) >= n)
    assert counted(connection, out) == exactly_once(n)


def test_a_turn_whose_handler_fails_on_a_server_that_is_away_is_undone_and_done_again(
    connection: Connection, run_name: str
) -> None:
    out, n = f"{run_name}.out", 200
    produce(connection, f"{run_name}.in", range(n))
    member = membership(connection.bootstrap, run_name)
    failures = iter([True] * 3)

    class Stumbling(Counter):
        def handle(self, message: Message) -> Iterable[Outgoing]:
            yield from super().handle(message)
            if self.count == 20 and next(failures, False):
                raise Aborted("as if the store were away")

    def all_committed() -> bool:
        return sum(fetch_committed_offsets(connection, member.group, member.topics).values()) == n

    consumer = GroupConsumer(member, lambda partition_id: Stumbling(partition_id, out))
    run_until(consumer, TransactionalWriter(connection, f"{run_name}.t"), all_committed)
    assert next(failures, None) is None, "the failures happened"
    assert counted(connection, out) == exactly_once(n)


def run_until(consumer: GroupConsumer, writer: TransactionalWriter, condition: Callable[[], bool]) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=run_loop, args=(consumer, writer, stop, Stopwatch()), daemon=True)
    thread.start()
    try:
        until(condition)
    finally:
        stop.set()
        thread.join(120)
        consumer.close()
        writer.close()


@pytest.mark.kafka
def test_memory_comes_from_the_snapshot_that_is_named_and_from_every_record_after_it(
    connection: Connection, run_name: str
) -> None:
    out = f"{run_name}.out"
    for end, snapshot_every_s in ((40, 0.0), (80, 1000.0), (120, 1000.0)):
        produce(connection, f"{run_name}.in", range(end - 40, end))
        member = membership(connection.bootstrap, run_name, snapshot_every_s)
        consumer = GroupConsumer(member, lambda partition_id: Counter(partition_id, out))
        writer = TransactionalWriter(connection, f"{run_name}.t")
        run_until(consumer, writer, lambda n=end: total(connection, out) >= n)  # type: ignore[misc]
    assert counted(connection, out) == exactly_once(120)


@pytest.mark.kafka
def test_offsets_that_are_set_back_bring_back_the_memory_that_belongs_to_them(
    connection: Connection, run_name: str
) -> None:
    out = f"{run_name}.out"
    member = membership(connection.bootstrap, run_name, snapshot_every_s=0.0)

    def count_until(n: int) -> None:
        consumer = GroupConsumer(member, lambda partition_id: Counter(partition_id, out))
        run_until(consumer, TransactionalWriter(connection, f"{run_name}.t"), lambda: total(connection, out) >= n)

    produce(connection, f"{run_name}.in", range(40))
    count_until(40)
    outsider = open_consumer(connection, "test", member.group)
    back_then = outsider.committed([TopicPartition(f"{run_name}.in", p) for p in range(PARTITIONS)], timeout=10)
    produce(connection, f"{run_name}.in", range(40, 80))
    count_until(80)
    outsider.commit(offsets=back_then, asynchronous=False)
    outsider.close()
    count_until(120)
    again = {p: pairs + pairs[10:] for p, pairs in exactly_once(80).items()}
    assert counted(connection, out) == again


@pytest.mark.kafka
def test_a_group_whose_input_ends_before_what_it_has_handled_stops(
    connection: Connection, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "SETTLING_S", 0.5)
    produce(connection, f"{run_name}.in", range(40))
    member = membership(connection.bootstrap, run_name)
    outsider = open_consumer(connection, "test", member.group)
    outsider.commit(offsets=[TopicPartition(f"{run_name}.in", 1, 25, '{"snapshot": -1}')], asynchronous=False)
    outsider.close()
    consumer = GroupConsumer(member, lambda partition_id: Counter(partition_id, f"{run_name}.out"))
    with pytest.raises(LogTruncated, match=r"in\[1\] ends at 10, but was read up to offset 25"):
        until(lambda: handled(consumer) > 40)
    consumer.close()


def handled(consumer: GroupConsumer) -> int:
    """Take one turn up to its commit; tell how many records that were."""
    messages = consumer.poll(Stopwatch())
    for message in messages:
        list(consumer.handle(message))
    return len(messages)


def write(consumer: GroupConsumer, writer: TransactionalWriter) -> None:
    """Write what a turn's transaction holds beside what followed from its records."""
    before = writer.produce(consumer.before_commit(()))
    writer.flush()
    if (offsets := consumer.offsets(before)) is not None:
        writer.send_offsets(offsets)


@pytest.mark.kafka
def test_an_aborted_turn_leaves_the_groups_offsets_where_they_were(connection: Connection, run_name: str) -> None:
    produce(connection, f"{run_name}.in", range(8))
    member = membership(connection.bootstrap, run_name, snapshot_every_s=0.0)
    consumer = GroupConsumer(member, lambda partition_id: Counter(partition_id, f"{run_name}.out"))
    writer = TransactionalWriter(connection, f"{run_name}.t")
    until(lambda: handled(consumer) > 0)
    writer.begin()
    write(consumer, writer)
    writer.abort()
    assert fetch_committed_offsets(connection, member.group, member.topics) == {}
    consumer.close()
    writer.close()


def test_a_member_that_lost_a_partition_commits_nothing_for_it(connection: Connection, run_name: str) -> None:
    """The broker would take it: its fence asks for the member's epoch, not for who owns the partition."""
    produce(connection, f"{run_name}.in", range(40))
    member = membership(connection.bootstrap, run_name)
    first = GroupConsumer(member, lambda partition_id: Counter(partition_id, f"{run_name}.out"))
    until(lambda: handled(first) == 0 and sum(held.position for held in first._held.values()) == 40)
    second = GroupConsumer(member, lambda partition_id: Counter(partition_id, f"{run_name}.out"))
    until(lambda: handled(first) == 0 and handled(second) > 0)
    lost = set(second._held)
    assert lost
    writer = TransactionalWriter(connection, f"{run_name}.t")
    writer.begin()
    write(first, writer)
    writer.commit()
    assert not lost & fetch_committed_offsets(connection, member.group, member.topics).keys()
    for leaving in (first, second, writer):
        leaving.close()


@pytest.mark.kafka
def test_a_member_that_lost_a_partition_while_it_handled_its_records_is_refused(
    connection: Connection, run_name: str
) -> None:
    """The metadata is that of the poll that brought the records; with today's the broker would take the commit."""
    produce(connection, f"{run_name}.in", range(40))
    member = membership(connection.bootstrap, run_name)
    first = GroupConsumer(member, lambda partition_id: Counter(partition_id, f"{run_name}.out"))
    until(lambda: handled(first) == 0 and sum(held.position for held in first._held.values()) == 40)
    held = dict(first._held)
    second = GroupConsumer(member, lambda partition_id: Counter(partition_id, f"{run_name}.out"))

    def moved() -> bool:
        first._consumer.poll(0.05)  # past its own `poll`, as a client does that goes round meanwhile
        return handled(second) > 0

    until(moved)
    first._held = held
    writer = TransactionalWriter(connection, f"{run_name}.t")
    writer.begin()
    with pytest.raises(Unavailable):
        write(first, writer)
    assert fetch_committed_offsets(connection, member.group, member.topics) == {}
    first.close()
    second.close()
    writer.close()


def test_a_second_writer_of_the_same_id_fences_the_first(connection: Connection, run_name: str) -> None:
    first = TransactionalWriter(connection, f"{run_name}.t")
    first.begin()
    first.produce([Outgoing(f"{run_name}.out", b"lost", partition=0)])
    second = TransactionalWriter(connection, f"{run_name}.t")
    with pytest.raises(Fenced):
        first.commit()
    second.begin()
    second.produce([Outgoing(f"{run_name}.out", b"kept", partition=0)])
    second.commit()
    assert [m.value for m in read_all(connection, [f"{run_name}.out"])] == [b"kept"]


@pytest.mark.kafka
def test_a_reader_waits_for_a_transaction_that_is_still_open(connection: Connection, run_name: str) -> None:
    topic = f"{run_name}.out"
    writer = TransactionalWriter(connection, f"{run_name}.t")
    writer.begin()
    ticket = writer.produce([Outgoing(topic, b"late", partition=0)])[0]
    writer.flush()
    with TopicReader(connection, find_start_positions(connection, [topic])) as reader:
        ends = reader.ends()
        assert ends[topic, 0] == ticket.offset + 1, "the high watermark counts what is not committed yet"
        assert reader.poll(timeout_s=0.5) == []
        committer = threading.Timer(0.5, writer.commit)
        committer.start()
        assert [m.value for m in reader.read_until(ends)] == [b"late"]
        committer.join()


@pytest.mark.kafka
def test_a_record_that_was_aborted_is_not_there(connection: Connection, run_name: str) -> None:
    topic = f"{run_name}.out"
    writer = TransactionalWriter(connection, f"{run_name}.t")
    writer.begin()
    ticket = writer.produce([Outgoing(topic, b"aborted", partition=0)])[0]
    writer.flush()
    writer.abort()
    assert read_one(connection, (topic, 0), ticket.offset) is None


@pytest.mark.kafka
def test_topics_are_created_once_and_differences_are_refused(connection: Connection, run_name: str) -> None:
    spec = TopicSpec(f"{run_name}.more", 3, {"retention.ms": "-1"})
    assert ensure_topics(connection, [spec]) == [spec.name]
    assert ensure_topics(connection, [spec]) == []
    with pytest.raises(TopicDiffers, match="has 3 partitions, the run needs 5"):
        ensure_topics(connection, [TopicSpec(spec.name, 5)])
    with pytest.raises(TopicDiffers, match=r"retention\.ms=-1, the run needs 1000"):
        ensure_topics(connection, [TopicSpec(spec.name, 3, {"retention.ms": "1000"})])
