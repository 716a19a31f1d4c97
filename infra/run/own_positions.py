"""Positions and snapshots of a component that is the only one of its kind: feeder, evaluator.

Its state and positions are in one snapshot in `state`, written in the same transaction as the resulting records. Its
stable transactional id fences any earlier process. So a restore takes the newest snapshot below the high watermark
after `init_transactions`, because the earlier process can write nothing later.

Large state is cut into parts with separate keys, and only changed parts are written. A body that is still too large for
a record is compressed and cut into pieces, which are written anew with each snapshot, before it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import Connection, Message, Outgoing
from headrace.infra.kafka.decoding import read_record
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.kafka.run_loop import Component, run_loop
from headrace.infra.kafka.topic_admin import describe_branching
from headrace.infra.kafka.topic_reader import (
    PartitionId,
    TopicReader,
    find_start_positions,
    name_partition,
    read_partition,
)
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.log import configure_logging
from headrace.infra.process.signals import JOIN_PATIENCE_S, MustRestart, begin_attempts, stop_on_signals
from headrace.infra.run.revisions import join_and_write_schemas
from headrace.infra.run.run import Run
from headrace.infra.stopwatch import Stopwatch
from headrace.schemas import codec
from headrace.schemas.records import Snapshot

SNAPSHOT_EVERY_S = 5.0
"""Seconds between snapshots while the state changes."""
OF_PART = "|"
"""Separator of component and part in snapshot keys."""
LARGEST_BODY = 15 << 19
"""Most bytes of a body or piece; the broker takes half a MiB more. A body of more bytes is cut into pieces."""
OF_PIECE = "~"
"""First character of the name of a piece; no part has such a name."""
_CUT = b'{"pieces": '
"""What stands in place of a body that was cut begins with this."""

BEGIN_ANEW = "The run cannot go on: begin a new run with the weights of this run by " + describe_branching(
    "HOST:PORT", "RUN", "NAME"
)


@dataclass(frozen=True, slots=True)
class Role:
    """Identity and topics of the component."""

    connection: Connection
    component: str
    """Name of the component and key of its snapshots; only one process at a time has it."""
    run_id: str
    state: PartitionId
    """The partition that holds its snapshots."""
    topics: tuple[str, ...]
    """Input topics."""


class OwnPositions:
    """Restores, polls and makes snapshots for one role. Build it after the transactional writer, which fences."""

    def __init__(self, role: Role) -> None:
        self.role = role
        found = _read_newest(role.connection, role.state, role.component)
        snapshot = found.pop("", None)
        pieces = {name: found.pop(name).body for name in list(found) if name.startswith(OF_PIECE)}
        self._pieces = set(pieces)
        """Names of the pieces on the log."""
        if snapshot is not None:
            snapshot = join_pieces(snapshot, pieces)
        self.restored: bytes | None = snapshot.body if snapshot else None
        """Body of the newest snapshot; None at the first start."""
        self.parts = {name: part.body for name, part in found.items()}
        """Bodies of its newest parts by name, without removed ones."""
        given = positions_of(snapshot) if snapshot else {}
        self.reader = TopicReader(
            role.connection, find_start_positions(role.connection, role.topics, given), role.component
        )

    def poll(self, watch: Stopwatch, timeout_s: float = 0.05, most: int = 256) -> list[Message]:
        """Return the next records."""
        with watch.measure("consume"):
            found = self.reader.poll(most, 0)
        if not found:
            with watch.measure("wait"):
                found = self.reader.poll(most, timeout_s)
        return found

    def catch_up(self) -> Iterable[Message]:
        """Yield the records since the snapshot, up to the current ends."""
        return self.reader.catch_up()

    def snapshot(self, body: bytes, parts: Mapping[str, bytes | None] | None = None) -> list[Outgoing]:
        """Return the snapshot records of a state with the current positions.

        Args:
            body: The state, without its parts.
            parts: Changed parts by name; None removes a part. Unchanged parts keep their last record. Write them in one
            transaction with the body.
        """
        positions = {name_partition(partition_id): offset for partition_id, offset in self.reader.positions.items()}
        body, pieces = _cut(body)
        gone = dict.fromkeys(sorted(self._pieces - pieces.keys()))
        self._pieces = set(pieces)
        whole = self._build_record(self.role.component, body, positions)
        named = {**(parts or {}), **gone, **pieces}
        names = {f"{self.role.component}{OF_PART}{name}": part for name, part in named.items()}
        return [*(self._build_record(key, part, {}) for key, part in names.items()), whole]

    def _build_record(self, key: str, body: bytes | None, positions: dict[str, int]) -> Outgoing:
        record = Snapshot(self.role.run_id, self.role.component, positions=positions, body=body or b"")
        value = b"" if body is None else codec.encode(record)
        topic, partition = self.role.state
        return Outgoing(topic, value, key.encode(), partition=partition, is_null=body is None)

    def rewind(self) -> None:
        """Raise MustRestart: the component is rebuilt completely."""
        raise MustRestart(f"{self.role.component} starts again from its newest snapshot")

    def close(self) -> None:
        """Close the reader."""
        self.reader.close()


def run_alone(component: str, run: str, build: Callable[[Run, TransactionalWriter], Component]) -> None:
    """Run the only component of its kind of `kafka://host:port/run` until a signal; rebuild it when necessary.

    `build` gets the writer, which has fenced any other process of this kind.
    """
    address = parse_run(run)
    configure_logging(component, run=address.run)
    stop = stop_on_signals()
    for attempt in begin_attempts(stop):
        with attempt, ExitStack() as life:  # no variable keeps the component alive after its attempt
            joined = join_and_write_schemas(address, JOIN_PATIENCE_S, stop)
            writer = TransactionalWriter(joined.connection, f"{address.run}.{component}", joined.topic_names)
            life.enter_context(closing(writer))
            run_loop(life.enter_context(closing(build(joined, writer))), writer, stop, Stopwatch())


def read_newest_snapshot(connection: Connection, state: PartitionId, component: str) -> Snapshot | None:
    """Return the newest committed snapshot of a component, without its parts; None if there is none."""
    newest: tuple[Snapshot, dict[str, bytes]] | None = None
    pieces: dict[str, bytes] = {}
    for message in read_partition(connection, state):
        whose, _, part = message.key.decode(errors="replace").partition(OF_PART)
        if whose != component or (part and not part.startswith(OF_PIECE)):
            continue
        if message.is_null:
            pieces.pop(part, None)
        elif (snapshot := read_record(message, Snapshot)) is None:
            continue
        elif part:
            pieces[part] = snapshot.body
        else:  # with the pieces before it: later ones may be of a transaction that was cut off
            newest = snapshot, pieces.copy()
    return join_pieces(*newest) if newest is not None else None


def _read_newest(connection: Connection, state: PartitionId, component: str) -> dict[str, Snapshot]:
    """Return the newest committed snapshots of a component (name "") and of its parts, by name."""
    found: dict[str, Snapshot] = {}
    for message in read_partition(connection, state):
        whose, _, part = message.key.decode(errors="replace").partition(OF_PART)
        if whose != component:
            continue
        if message.is_null:
            found.pop(part, None)
        elif (snapshot := read_record(message, Snapshot)) is not None:
            found[part] = snapshot
    return found


def _cut(body: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Return what to write in place of a body, and its pieces by name; none if it fits into a record."""
    if len(body) <= LARGEST_BODY:
        return body, {}
    packed = zlib.compress(body, 1)
    begins = range(0, len(packed), LARGEST_BODY)
    pieces = {f"{OF_PIECE}{index}": packed[begin : begin + LARGEST_BODY] for index, begin in enumerate(begins)}
    return json.dumps({"pieces": len(pieces)}).encode(), pieces


def is_cut(snapshot: Snapshot) -> bool:
    """Return whether the body of a snapshot is in pieces."""
    return snapshot.body.startswith(_CUT)


def join_pieces(snapshot: Snapshot, pieces: Mapping[str, bytes]) -> Snapshot:
    """Return a snapshot with its body joined of its pieces, if it was cut.

    Args:
        snapshot: The snapshot, as it is on the topic `state`.
        pieces: Bodies of the pieces before it, by name.

    Raises:
        HeadraceError: A piece is missing or damaged.
    """
    if not is_cut(snapshot):
        return snapshot
    names = [f"{OF_PIECE}{index}" for index in range(json.loads(snapshot.body)["pieces"])]
    if missing := [name for name in names if name not in pieces]:
        raise HeadraceError(
            f"the newest snapshot of {snapshot.component} lacks {len(missing)} of its {len(names)} pieces, because "
            f"records of the topic `state` were deleted or cannot be read. {BEGIN_ANEW}"
        )
    try:
        return replace(snapshot, body=zlib.decompress(b"".join(pieces[name] for name in names)))
    except zlib.error as error:
        raise HeadraceError(
            f"pieces of the newest snapshot of {snapshot.component} are damaged ({error}). {BEGIN_ANEW}"
        ) from error


def positions_of(snapshot: Snapshot) -> dict[PartitionId, int]:
    """Return the next input offsets in a snapshot."""
    return {_parse_partition(name): offset for name, offset in snapshot.positions.items()}


def _parse_partition(name: str) -> PartitionId:
    topic, _, partition = name.removesuffix("]").rpartition("[")
    return topic, int(partition)
