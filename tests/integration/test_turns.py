"""What a member of a group does in one turn is bounded: what it writes, how long it handles, how long it restores."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from counting_component import Counter, membership
from test_run_loop import PARTITIONS, counted, exactly_once, produce, run_until, total

from headrace.infra.kafka.clients import Connection, Message, Outgoing
from headrace.infra.kafka.group_offsets import fetch_committed_offsets
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.kafka.transactions import Aborted, TransactionalWriter
from headrace.infra.run import group_consumer
from headrace.infra.run.group_consumer import GroupConsumer
from headrace.infra.stopwatch import Stopwatch
from headrace.schemas.topics import TopicSpec

LARGE = 3 << 20


@pytest.fixture
def connection(bootstrap: str, run_name: str) -> Connection:
    found = Connection(bootstrap)
    specs = [TopicSpec(f"{run_name}.{name}", PARTITIONS) for name in ("in", "out")]
    ensure_topics(found, [*specs, TopicSpec(f"{run_name}.state", 1, {"cleanup.policy": "compact"})])
    return found


class Weighed(TransactionalWriter):
    """Notes what is in each transaction: (records, bytes)."""

    def __init__(self, connection: Connection, transactional_id: str) -> None:
        self.turns: list[tuple[int, int]] = []
        super().__init__(connection, transactional_id)

    def begin(self) -> None:
        self.turns.append((0, 0))
        super().begin()

    def produce(self, outgoing: Iterable[Outgoing]) -> list:  # type: ignore[type-arg]
        records = list(outgoing)
        count, size = self.turns[-1]
        ours = [one for one in records if not one.topic.endswith(".state")]
        self.turns[-1] = (count + len(ours), size + sum(len(one.value) for one in ours))
        return super().produce(records)


class Large(Counter):
    """Writes records as large as groups of long trajectories are."""

    def handle(self, message: Message) -> Iterable[Outgoing]:
        for one in super().handle(message):
            yield Outgoing(one.topic, one.value.ljust(LARGE), one.key, partition=one.partition)


def test_a_turn_ends_once_it_writes_8_mib_and_the_next_one_begins_with_what_is_left(
    connection: Connection, run_name: str
) -> None:
    out, n = f"{run_name}.out", 24
    produce(connection, f"{run_name}.in", range(n))
    consumer = GroupConsumer(membership(connection.bootstrap, run_name), lambda partition_id: Large(partition_id, out))
    writer = Weighed(connection, f"{run_name}.t")
    run_until(consumer, writer, lambda: total(connection, out) == n)
    assert max(size for _, size in writer.turns) < group_consumer.MOST_TURN_BYTES + LARGE
    assert max(count for count, _ in writer.turns) == 3, "and it is used"
    assert counted(connection, out) == exactly_once(n)


def test_a_member_goes_on_polling_while_it_restores_and_misses_no_record(
    connection: Connection, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (8, 200):  # snapshots are of the first 8
        count_to(connection, run_name, n, snapshot_every_s=1000.0)
    monkeypatch.setattr(group_consumer, "RESTORE_S", 0.0)
    produce(connection, f"{run_name}.in", range(200, 240))
    out, member = f"{run_name}.out", membership(connection.bootstrap, run_name)
    undone = iter([True])
    polls: list[int] = []

    class Polled(GroupConsumer):
        def poll(self, watch: Stopwatch) -> list[Message]:
            found = super().poll(watch)
            polls.append(len(found))
            return found

    class Stumbling(Counter):
        def handle(self, message: Message) -> Iterable[Outgoing]:
            yield from super().handle(message)
            if self.count == 55 and next(undone, False):
                raise Aborted("everything is restored once more")

    consumer = Polled(member, lambda partition_id: Stumbling(partition_id, out))
    run_until(consumer, TransactionalWriter(connection, f"{run_name}.t"), lambda: total(connection, out) == 240)
    assert polls.count(0) > 2 * 192, "each poll restored a step, twice over"
    assert next(undone, None) is None
    assert counted(connection, out) == exactly_once(240)


def count_to(connection: Connection, run_name: str, n: int, *, snapshot_every_s: float) -> None:
    """Produce up to so many records, count them, and commit."""
    produce(connection, f"{run_name}.in", range(total(connection, f"{run_name}.out"), n))
    member = membership(connection.bootstrap, run_name, snapshot_every_s)
    consumer = GroupConsumer(member, lambda partition_id: Counter(partition_id, f"{run_name}.out"))

    def all_committed() -> bool:
        return sum(fetch_committed_offsets(connection, member.group, member.topics).values()) == n

    run_until(consumer, TransactionalWriter(connection, f"{run_name}.t"), all_committed)
