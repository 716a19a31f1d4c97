"""Reading for a component that is alone in its role and keeps its own positions: feeder, evaluator.

Its state and its positions stand in one snapshot in `state`, written in the same transaction as what followed from
them. Its stable transactional id fences any process that held the role before. So a restore takes the newest snapshot
before the high watermark that it sees after `init_transactions`: nothing can be written behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.infra.kafka.clients import Connection, Message, Outgoing
from headrace.infra.kafka.decoding import read_record
from headrace.infra.kafka.topic_reader import TopicReader, read_all, whole_topics
from headrace.infra.process.signals import MustRestart
from headrace.infra.stopwatch import Stopwatch
from headrace.schemas import codec
from headrace.schemas.records import Snapshot


@dataclass(frozen=True, slots=True)
class Role:
    """Who the component is."""

    connection: Connection
    component: str
    """Key of its snapshots; one process at a time plays it."""
    run_id: str
    state_topic: str
    topics: tuple[str, ...]
    """What it reads."""


class OwnPositions:
    """Restores, polls and snapshots for one role. Build it after the transactional writer, which fences."""

    def __init__(self, role: Role) -> None:
        self.role = role
        snapshot = newest_snapshot(role.connection, role.state_topic, role.component)
        self.restored: bytes | None = snapshot.body if snapshot else None
        """Body of the newest snapshot; None at the first start."""
        given = {_place(name): offset for name, offset in snapshot.positions.items()} if snapshot else {}
        self.reader = TopicReader(role.connection, whole_topics(role.connection, role.topics, given), role.component)

    def poll(self, watch: Stopwatch, timeout_s: float = 0.05, most: int = 256) -> list[Message]:
        """Return the next records."""
        with watch.measure("consume"):
            found = self.reader.poll(most, 0)
        if not found:
            with watch.measure("wait"):
                found = self.reader.poll(most, timeout_s)
        return found

    def catch_up(self) -> Iterable[Message]:
        """Yield what came since the snapshot, up to this moment's ends."""
        return self.reader.catch_up()

    def snapshot(self, body: bytes) -> Outgoing:
        """Return the record of this state and of the positions that belong to it."""
        positions = {f"{topic}[{partition}]": offset for (topic, partition), offset in self.reader.positions.items()}
        record = Snapshot(run_id=self.role.run_id, component=self.role.component, positions=positions, body=body)
        return Outgoing(self.role.state_topic, codec.encode(record), self.role.component.encode(), partition=0)

    def rewind(self) -> None:
        """Raise MustRestart: such a component is rebuilt as a whole."""
        raise MustRestart(f"{self.role.component} starts again from its newest snapshot")

    def close(self) -> None:
        """Leave."""
        self.reader.close()


def newest_snapshot(connection: Connection, state_topic: str, component: str) -> Snapshot | None:
    """Return the newest committed snapshot of a component; None when there is none."""
    newest = None
    for message in read_all(connection, [state_topic]):
        if message.key == component.encode():
            newest = read_record(message, Snapshot) or newest
    return newest


def _place(name: str) -> tuple[str, int]:
    topic, _, partition = name.removesuffix("]").rpartition("[")
    return topic, int(partition)
