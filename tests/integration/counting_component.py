"""A toy component for tests of the run loop: counts the records of each partition and writes each with its count.

As a process (`python counting_component.py BOOTSTRAP RUN`) it can be killed; its output shows what was done twice.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

from headrace.infra.kafka.clients import Connection, Message, Outgoing
from headrace.infra.kafka.run_loop import run_loop
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.process.signals import begin_attempts, stop_on_signals
from headrace.infra.run.group_consumer import GroupConsumer
from headrace.infra.run.group_restore import Membership
from headrace.infra.stopwatch import Stopwatch


class Counter:
    """One partition: `key count` out for every key in, counted since the beginning of the partition."""

    is_last_refused = False

    def __init__(self, partition_id: PartitionId, out: str) -> None:
        self.partition_id, self.out, self.count = partition_id, out, 0

    def handle(self, message: Message) -> Iterable[Outgoing]:
        self.count += 1
        told = f"{message.value.decode()} {self.count}".encode()
        yield Outgoing(self.out, told, message.key, partition=self.partition_id[1])

    def snapshot(self) -> bytes:
        return json.dumps(self.count).encode()

    def restore(self, body: bytes) -> None:
        self.count = int(json.loads(body))


def membership(bootstrap: str, run: str, snapshot_every_s: float = 0.2) -> Membership:
    return Membership(
        connection=Connection(bootstrap),
        component="count",
        run_id="run-1",
        group=f"{run}.count",
        topics=(f"{run}.in",),
        state_topic=f"{run}.state",
        snapshot_every_s=snapshot_every_s,
    )


def main(bootstrap: str, run: str, slot: str) -> None:
    stop = stop_on_signals()
    for attempt in begin_attempts(stop):
        with attempt:
            member = membership(bootstrap, run)
            writer = TransactionalWriter(member.connection, f"{run}.count.{slot}")
            consumer = GroupConsumer(member, lambda partition_id: Counter(partition_id, f"{run}.out"))
            try:
                run_loop(consumer, writer, stop, Stopwatch())
            finally:
                consumer.close()
                writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
