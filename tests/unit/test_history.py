"""What a trainer that comes back reads of its past: as little as it can, and all that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from headrace.infra.kafka.clients import Message
from headrace.schemas import codec
from headrace.schemas.records import (
    BatchTrained,
    CheckpointPointer,
    ClaimCheck,
    Eviction,
    GroupUse,
    Position,
    WeightsPublished,
)
from headrace.schemas.topics import Topics, checkpoint_key
from headrace.trainers.health import HEALTH_LOOK_BACK
from headrace.trainers.versions.batch_offsets import BatchOffsets
from headrace.trainers.versions.history import History, _Fold

TOPICS = Topics("run")
VERSIONS = 200


@dataclass
class Log:
    """What a trainer of a random window writes on `batches` and `state`, two offsets between records."""

    rng: Random
    batches: list[Message] = field(default_factory=list)
    state: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        offsets, ends, window = BatchOffsets(), {0: 0, 1: 0}, list[tuple[int, int]]()
        for version in range(1, VERSIONS + 1):
            for _ in range(self.rng.randrange(3, 8)):
                partition = self.rng.randrange(2)
                window.append((partition, ends[partition]))
                ends[partition] += 1
            if self.rng.random() < 0.3:
                gone = window.pop(self.rng.randrange(len(window)))
                offsets.note_concluded(self._write(-1, ends, (), (gone,)))
            kept = [one for one in window if one[1] % 40 == 0 and ends[one[0]] - one[1] < 150]
            batch = tuple(one for one in window if one not in kept)
            window = kept if self.rng.random() < 0.9 else []  # what is dropped here was never concluded
            offsets.note_concluded(self._write(version, ends, batch, ()))
            if version % 7 == 0:
                needed = {p: min([end, *(o for at, o in window if at == p)]) for p, end in ends.items()}
                self._checkpoint(version, needed, offsets.find_first_needed(needed))
            offsets.note_version_offset(self.batches[-1].offset)

    def _write(
        self, version: int, ends: dict[int, int], batch: tuple[tuple[int, int], ...], gone: tuple[tuple[int, int], ...]
    ) -> BatchTrained:
        record = BatchTrained(
            run_id="r",
            version=version,
            groups=tuple(GroupUse("s", 0, 0, *one) for one in batch),
            evictions=tuple(Eviction(GroupUse("s", 0, 0, *one), "expired") for one in gone),
            positions=tuple(Position(partition, end) for partition, end in ends.items()),
            metrics={"version": float(version)},
        )
        offset = 2 * len(self.batches)
        self.batches.append(Message(TOPICS.batches("solver"), 0, offset, b"", codec.encode(record)))
        return record

    def _checkpoint(self, version: int, needed: dict[int, int], begin: int) -> None:
        positions = tuple(Position(partition, offset) for partition, offset in needed.items())
        pointer = CheckpointPointer("r", "solver", "", version, 0, ClaimCheck(), (), "", positions, {}, begin)
        self.state.append(Message(TOPICS.state, 0, version, checkpoint_key("solver", version), codec.encode(pointer)))

    def read(self, begin: int, *, recent: bool) -> History:
        fold = _Fold("r", TOPICS, "solver", recent=recent)
        history = fold.of(self.state)
        history.offsets = BatchOffsets(begin)
        return fold.of(message for message in self.batches if message.offset >= begin)


def waits(history: History) -> Iterator[tuple[int, int]]:
    """Yield the offsets that a successor takes for open."""
    assert history.checkpoint is not None
    assert history.last is not None
    ends = {one.partition: one.offset for one in history.last.positions}
    for position in history.checkpoint.positions:
        for offset in range(position.offset, ends[position.partition]):
            if (position.partition, offset) not in history.concluded:
                yield position.partition, offset


@pytest.mark.parametrize("seed", range(20))
def test_from_its_checkpoints_offset_on_a_trainer_reads_all_that_it_needs(seed: int) -> None:
    log = Log(Random(seed))  # noqa: S311 - nothing secret
    whole = log.read(0, recent=False)
    assert whole.checkpoint is not None
    begin = whole.checkpoint.batches_offset
    assert begin > log.batches[-1].offset // 3, "most of it is not read"
    recent = log.read(begin, recent=True)
    assert list(waits(recent)) == list(waits(whole))
    assert recent.last == whole.last
    assert recent.batches[-HEALTH_LOOK_BACK:] == whole.batches[-HEALTH_LOOK_BACK:]
    assert [one for one in recent.batches if one.version > whole.checkpoint.version] == [
        one for one in whole.batches if one.version > whole.checkpoint.version
    ]
    positions = {one.partition: one.offset for one in whole.checkpoint.positions}
    assert recent.offsets.find_first_needed(positions) == whole.offsets.find_first_needed(positions)


def test_of_a_log_without_offsets_only_what_is_needed_is_kept() -> None:
    log = Log(Random(1))  # noqa: S311 - nothing secret
    whole, recent = log.read(0, recent=False), log.read(0, recent=True)
    assert list(waits(recent)) == list(waits(whole))
    assert len(recent.batches) <= HEALTH_LOOK_BACK + 8
    assert len(recent.concluded) < len(whole.concluded) // 4


@pytest.mark.parametrize("kinds", [["anchor", "delta"], ["whole"], ["whole", "delta"], ["anchor", "delta", "whole"]])
def test_a_past_that_begins_with_weights_published_whole_once_more_has_a_published_version(kinds: list[str]) -> None:
    events = [WeightsPublished("r", "solver", version=n, kind=kind, weights_hash=kind) for n, kind in enumerate(kinds)]
    messages = [Message(TOPICS.weights("solver"), 0, n, b"", codec.encode(one)) for n, one in enumerate(events)]
    published = _Fold("r", TOPICS, "solver", recent=True).of(messages).published
    newest = [one for one in events if one.kind != "whole"] or events
    assert published == newest[-1]


def test_a_checkpoint_of_another_policy_or_shadow_is_nobodys_own() -> None:
    log = Log(Random(1))  # noqa: S311 - nothing secret
    before = log.read(0, recent=False).checkpoint
    foreign = CheckpointPointer("r", "solver", "free", 10**6)
    log.state.append(Message(TOPICS.state, 0, 10**6, checkpoint_key("solver", 10**6), codec.encode(foreign)))
    assert log.read(0, recent=False).checkpoint == before
