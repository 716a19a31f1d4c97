"""A component for tests of faults: puts what it reads into the store, and writes its count and the object's name.

`python storing_component.py BOOTSTRAP RUN STORE_URL`, the store's keys in the environment. It ends when a call of
librdkafka hangs, as every component does, and is to be started again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace

from counting_component import Counter, membership

from headrace.infra.kafka import call_watch, transactions
from headrace.infra.kafka.clients import Connection, Message, Outgoing
from headrace.infra.kafka.run_loop import run_loop
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.process.signals import begin_attempts, stop_on_signals
from headrace.infra.run.group_consumer import GroupConsumer
from headrace.infra.stopwatch import Stopwatch
from headrace.infra.store.object_store import ObjectStore, StoreAddress


class StoringCounter(Counter):
    """One partition: `value count key sha256 size` out for every value in."""

    def __init__(self, partition_id: PartitionId, out: str, store: ObjectStore) -> None:
        super().__init__(partition_id, out)
        self.store = store

    def handle(self, message: Message) -> Iterable[Outgoing]:
        stored = self.store.put(message.value * 100, "values")
        for record in super().handle(message):
            told = f"{record.value.decode()} {stored.key} {stored.sha256} {stored.size_bytes}"
            yield Outgoing(record.topic, told.encode(), record.key, partition=record.partition)


def connection(bootstrap: str) -> Connection:
    """Notice within seconds, not within a minute, that a link has become a black hole."""
    return Connection(bootstrap, {"socket.timeout.ms": "4000"})


def main(bootstrap: str, run: str, store_url: str) -> None:
    transactions.CALL_S, call_watch.CALL_STUCK_S = 3.0, 5.0

    stop = stop_on_signals()
    for attempt in begin_attempts(stop):
        with attempt:
            member = replace(membership(bootstrap, run), connection=connection(bootstrap))
            writer = TransactionalWriter(member.connection, f"{run}.count.a")
            with ObjectStore(StoreAddress.from_url(store_url)) as store:
                consumer = GroupConsumer(member, lambda partition_id: StoringCounter(partition_id, f"{run}.out", store))
                try:
                    run_loop(consumer, writer, stop, Stopwatch())
                finally:
                    consumer.close()
                    writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
