"""What tells of a run from its topics alone, audit and lineage, given whatever a broken or hostile producer sends."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict
from random import Random
from typing import Any

import pytest
from made_recipes import sums_recipe
from mutations import Fuzz, altered, altered_headers, distorted, example

from headrace.infra.kafka.clients import Connection, Message, RunAddress
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.ledger.ledger import Ledger
from headrace.ledger.run_streams import RunStreams
from headrace.ops.audit.broken_numbers import Scope
from headrace.ops.audit.evidence import add_record_names
from headrace.ops.audit.fold import AuditFold
from headrace.ops.audit.problems import Problems
from headrace.ops.audit.results import Audit
from headrace.ops.lineage import group_fate, lineage
from headrace.ops.plain_json import plain
from headrace.schemas import codec
from headrace.schemas.avro import schema_of
from headrace.schemas.headers import Stamp, task_key
from headrace.schemas.records import (
    BatchTrained,
    CheckpointPointer,
    CuratedGroup,
    DeadLetter,
    Eviction,
    GroupUse,
    Outcome,
    Position,
    Task,
    TrajectoryGroup,
    WeightsPublished,
)
from headrace.schemas.topics import checkpoint_key

pytestmark = pytest.mark.timeout(1200)  # seconds, on a machine that does nothing else

RECIPE = sums_recipe()
RUN = Run(RunAddress(Connection("127.0.0.1:1"), "t"), "run-1", (RECIPE,), StoreAddress("127.0.0.1:1", "b", "a", "b"))
TOPICS = RUN.topics
KEY, STAMP = task_key("sums", 1), Stamp("run-1", "sums", 1, policy="solver")
AT_A_TIME = 50
"""Messages of one run."""

VALID: tuple[tuple[str, Any, bytes], ...] = (
    (TOPICS.outcomes("solver"), Outcome("run-1", "sums", 1, 0, "solver", verdict="kept", component="curate"), KEY),
    (
        TOPICS.batches("solver"),
        BatchTrained(
            "run-1",
            "solver",
            version=1,
            groups=(GroupUse("sums", 1),),
            evictions=(Eviction(GroupUse("", -1, 0, 0, 3), "dead"), Eviction(GroupUse("sums", 2), "expired")),
            positions=(Position(0, 7),),
        ),
        b"1",
    ),
    (
        TOPICS.dead_letters,
        DeadLetter("run-1", "curate", TOPICS.trajectories("solver"), 0, 3, "undecodable", "", "solver", "sums", 1),
        KEY,
    ),
    (TOPICS.weights("solver"), WeightsPublished("run-1", "solver", version=1), b""),
    (TOPICS.state, CheckpointPointer("run-1", "solver", version=1), checkpoint_key("solver", 1)),
    (TOPICS.tasks("sums"), Task("run-1", "sums", 1), KEY),
    (TOPICS.trajectories("solver"), TrajectoryGroup("run-1", "sums", 1, policy="solver"), KEY),
    (TOPICS.curated("solver"), CuratedGroup("run-1", "sums", 1), KEY),
)  # fmt: skip


def said(rng: Random) -> list[Message]:
    """Return what stands on a run's topics: some of it nonsense."""
    return [_said(rng, offset) for offset in range(AT_A_TIME)]


def _said(rng: Random, offset: int) -> Message:
    topic, record, key = rng.choice(VALID)
    if rng.random() < 0.1:
        record = example(schema_of(type(record)))
    data = codec.encode(distorted(rng, record) if rng.random() < 0.7 else record)
    data = altered(rng, data) if rng.random() < 0.3 else data
    headers = STAMP.to_headers()
    headers = altered_headers(rng, headers) if rng.random() < 0.2 else headers
    return Message(topic, rng.randrange(4), offset, key, data, headers)


def audited(messages: Iterable[Message]) -> tuple[Audit, Problems]:
    """The audit, and its problems with the records that name them."""
    fold = AuditFold("run-1", RECIPE)
    for message in messages:
        fold.fold_message(message)
    fold.fold_feeder_snapshot()
    found = fold.account.audit(Scope(drained=True, still=True, whole=True))
    return found, add_record_names(fold.account.ledger, found.problems)


def test_the_audit_counts_whatever_was_said(fuzz: Fuzz) -> None:
    def check(messages: list[Message]) -> None:
        found, named = audited(messages)
        json.dumps([asdict(found.groups), [str(problem) for problem in named.listed]])
        unread = [m for m in messages if m.topic == TOPICS.dead_letters and not _readable(m)]
        assert found.unreadable_letters == len(unread)
        assert f"{TOPICS.dead_letters}[" not in "".join(map(str, found.problems.listed)), "nobody could ever mend that"

    fuzz.run("audit", 0.0005, said, check)


def test_a_group_has_a_fate_whatever_was_said(fuzz: Fuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[Message] = []

    def read(connection: Connection, topics: Iterable[str]) -> list[Message]:
        return [message for message in messages if message.topic in set(topics)]

    def read_offsets(connection: Connection, topic: str, offsets: Mapping[int, set[int]]) -> list[Message]:
        return [m for m in read(connection, [topic]) if m.offset in offsets.get(m.partition, ())]

    def read_key(connection: Connection, partition_id: tuple[str, int], key: bytes) -> list[Message]:
        return [m for m in read(connection, partition_id[:1]) if m.key == key]

    monkeypatch.setattr(group_fate, "read_all", read)
    monkeypatch.setattr(lineage, "read_offsets", read_offsets)
    monkeypatch.setattr(lineage, "read_key", read_key)

    def check(given: list[Message]) -> None:
        messages[:] = given
        with closing(Ledger(None, "run-1", RunStreams(RECIPE))) as ledger:
            ledger.add(given)
            json.dumps(plain(group_fate.group_lineage(RUN, ledger, "solver", "sums", 1)))

    fuzz.run("lineage", 0.0005, said, check)


def _readable(message: Message) -> bool:
    try:
        codec.decode(message.value, DeadLetter)
    except codec.SchemaError:
        return False
    return True
