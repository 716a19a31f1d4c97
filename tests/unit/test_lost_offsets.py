"""Kafka forgot how far a group was: it goes on from its snapshot, and nothing that is written is written again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition

from headrace.infra.kafka.clients import Connection, Message, Outgoing
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.run import group_restore
from headrace.infra.run.group_restore import Membership, Restore, Restored, StateLost
from headrace.schemas import codec
from headrace.schemas.records import Snapshot

IN, OUT, STATE = ("in", 0), ("out", 0), ("state", 0)
LOG: dict[PartitionId, list[Message]] = {}


class InMemory:
    """A reader of `LOG`."""

    def __init__(self, _connection: Connection, positions: Mapping[PartitionId, int], _name: str = "") -> None:
        self._positions = positions

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def ends(self) -> dict[PartitionId, int]:
        return {partition_id: len(LOG[partition_id]) for partition_id in self._positions}

    def catch_up(self) -> Iterator[Message]:
        for partition_id, begin in self._positions.items():
            yield from LOG[partition_id][begin:]

    def read_until(self, ends: Mapping[PartitionId, int]) -> Iterator[Message]:
        for partition_id, begin in self._positions.items():
            yield from LOG[partition_id][begin : ends[partition_id]]


class Summing:
    """Writes the running sum of what it reads; of a number that it has read before nothing follows."""

    is_last_refused = False

    def __init__(self) -> None:
        self.seen: list[int] = []

    def handle(self, message: Message) -> Iterable[Outgoing]:
        number = int(message.value)
        if number not in self.seen:
            self.seen.append(number)
            yield Outgoing("out", str(sum(self.seen)).encode(), str(number).encode(), [("use", b"0")], partition=0)

    def snapshot(self) -> bytes:
        return json.dumps(self.seen).encode()

    def restore(self, body: bytes) -> None:
        self.seen = json.loads(body)


class Unreadable(TopicPartition):
    """A commit whose text another client wrote."""

    @property
    def metadata(self) -> str:
        return b"\xff".decode()


def append(partition_id: PartitionId, *records: tuple[bytes, bytes]) -> None:
    log = LOG.setdefault(partition_id, [])
    for key, value in records:
        log.append(Message(*partition_id, len(log), key, value, [("use", b"0")]))


def restored(monkeypatch: pytest.MonkeyPatch, committed: int = OFFSET_INVALID, metadata: str | None = "") -> Restored:
    monkeypatch.setattr(group_restore, "TopicReader", InMemory)
    monkeypatch.setattr(group_restore, "refuse_lost_tail", lambda *_: None)
    member = Membership(Connection("k:1"), "curate.p", "r", "g", ("in",), "state")
    commit = Unreadable(*IN, committed) if metadata is None else TopicPartition(*IN, committed, metadata)
    restore = Restore(member, [commit], lambda _: Summing())
    found: Any = None
    while found is None:
        found = restore.continue_for(10)
    one: Restored = found[IN]
    return one


@pytest.fixture(autouse=True)
def log() -> None:
    """Seven numbers, 3 twice; three were handled before the snapshot, two after it, and their records are written."""
    LOG.clear()
    append(IN, *((b"", str(number).encode()) for number in (1, 2, 3, 4, 3, 5, 6, 7)))
    append(OUT, *((str(number).encode(), b"") for number in (1, 2, 3, 4, 5)))
    snapshot = Snapshot("r", "curate.p", "in", 0, {"in[0]": 3}, json.dumps([1, 2, 3]).encode())
    older = Snapshot("r", "curate.p", "in", 0, {"in[0]": 1}, json.dumps([1]).encode())
    of_another = Snapshot("r", "curate.q", "in", 0, {"in[0]": 9}, b"[]")
    append(
        STATE,
        (b"curate.p|in|0", codec.encode(older)),
        (b"curate.p|in|0", codec.encode(snapshot)),
        (b"curate.q|in|0", codec.encode(of_another)),
    )


def test_a_partition_without_its_offset_goes_on_where_its_snapshot_and_its_records_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = restored(monkeypatch)
    assert (one.was_lost, one.snapshot_offset, one.begin, one.end) == (True, 1, 3, 6)
    following = [record.key for message in LOG[IN][one.end :] for record in one.state.handle(message)]
    assert following == [b"6", b"7"], "each number is written exactly once"


def test_it_is_where_it_would_be_with_its_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = restored(monkeypatch)
    kept = restored(monkeypatch, 6, json.dumps({"snapshot": 1}))
    assert (kept.was_lost, kept.end, kept.state.snapshot()) == (False, lost.end, lost.state.snapshot())


def test_a_number_that_comes_again_is_no_proof_that_what_is_before_it_was_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append(IN, (b"", b"1"))
    one = restored(monkeypatch)
    assert one.end == 6
    assert [record.key for message in LOG[IN][one.end :] for record in one.state.handle(message)] == [b"6", b"7"]


def test_after_a_stop_in_good_order_nothing_is_handled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    LOG[IN] = LOG[IN][:3]
    assert restored(monkeypatch).end == 3


def test_a_group_that_has_never_been_anywhere_begins_at_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    LOG[STATE], LOG[OUT] = LOG[STATE][2:], []
    one = restored(monkeypatch)
    assert (one.was_lost, one.begin, one.end, one.snapshot_offset) == (False, 0, 0, -1)


FORGET = "`kafka-consumer-groups --bootstrap-server k:1 --group g --topic in:0 --delete-offsets`"
BRANCH = "`headrace up RECIPE --set name=state-2 --branch kafka://k:1/state@best`"


@pytest.mark.parametrize(
    ("metadata", "lost", "commands"),
    [
        ("theirs", "another program commits offsets for consumer group", (FORGET,)),
        (None, "another program commits offsets for consumer group", (FORGET,)),
        ('{"snapshot": 2}', "groups of this partition were trained on, and some could", (FORGET, BRANCH)),
        ('{"snapshot": 3}', "groups of this partition were trained on, and some could", (FORGET, BRANCH)),
        ('{"snapshot": 4}', "If another version of Headrace wrote it, nothing is lost", (BRANCH,)),
    ],
    ids=["another program's", "not UTF-8", "another component's", "gone", "not to be read"],
)
def test_what_is_lost_is_named_with_its_cost_and_the_command_to_go_on(
    monkeypatch: pytest.MonkeyPatch, metadata: str | None, lost: str, commands: tuple[str, ...]
) -> None:
    if metadata == '{"snapshot": 4}':
        unreadable = Snapshot("r", "curate.p", "in", 0, {"in[0]": 3}, b"[1, 2")
        append(STATE, (b"", b""), (b"curate.p|in|0", codec.encode(unreadable)))
    with pytest.raises(StateLost) as raised:
        restored(monkeypatch, 6, metadata)
    assert lost in str(raised.value)
    assert [command for command in (FORGET, BRANCH) if command in str(raised.value)] == list(commands)
