"""Curated groups of an archive: in logical order for new batches, or in the order of a run's own batches."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.infra.archive.reading import Archive
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.run.first_uses import CuratedReplay, is_first_use
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing
from headrace.schemas import codec
from headrace.schemas.headers import HeaderError, Stamp, task_key
from headrace.schemas.ids import UseId
from headrace.schemas.records import BatchTrained, CuratedGroup, GroupUse
from headrace.trainers.batches.first_use_cache import FirstUseCache
from headrace.trainers.batches.groups import DecodedGroup, decode_group
from headrace.trainers.batches.trained_groups import LineageBroken
from headrace.trainers.versions.history import History, fold_history

ANEW = "without --batches, `headrace offline train` makes new batches of the groups in the archive"


@dataclass(frozen=True, slots=True)
class Arrived:
    """A curated record, and its place in logical time."""

    message: Message
    clock: int
    """Newest head_version on its partition so far; -1 before the first one."""
    index: int
    """Number of records before it on its partition."""

    @property
    def rank(self) -> tuple[int, int, int]:
        """Sort key: the record that comes first has the lower rank."""
        return self.clock, self.index, self.message.partition


def iterate_arrivals(archive: Archive, topic: str) -> Iterator[Arrived]:
    """Yield a topic's records in an order that only the records decide: the partition with the oldest clock first.

    Each partition keeps its order. Raises as `Archive.messages`.
    """
    partitions = (_iterate_partition(archive, partition_id) for partition_id in archive.partitions(topic))
    return heapq.merge(*partitions, key=lambda one: one.rank)


def _iterate_partition(archive: Archive, partition_id: PartitionId) -> Iterator[Arrived]:
    clock = -1
    for count, message in enumerate(archive.messages(partition_id)):
        clock = max(clock, _read_head_version(message, archive.manifest.run_id))
        yield Arrived(message, clock, count)


def _read_head_version(message: Message, run_id: str) -> int:
    try:
        stamp = Stamp.from_headers(message.headers)
    except HeaderError:
        return -1
    return stamp.head_version if stamp.run_id == run_id else -1


class ArchivedFirstUses:
    """Records of first uses on an archived curated topic. Raises as `Archive.messages`."""

    def __init__(self, archive: Archive, topic: str) -> None:
        self._archive, self._topic = archive, topic

    def at(self, partition: int, offset: int) -> Message | None:
        """Return the message at a position."""
        for messages in self._archive.read_backwards((self._topic, partition), offset):
            return next((one for one in messages if one.offset == offset), None)
        return None

    def of(self, replay: CuratedReplay) -> Message | None:
        """Return the first use of a replay, searching files backwards from the position that the replay gives."""
        key, run_id = task_key(replay.stream, replay.number), self._archive.manifest.run_id
        partition_id = (self._topic, replay.partition)
        for messages in self._archive.read_backwards(partition_id, replay.offset - replay.back):
            for message in messages:
                if message.key == key and is_first_use(message, run_id):
                    return message
        return None


def read_history(archive: Archive, policy: str) -> History:
    """Return a policy's past, as far as its topics are archived."""
    topics = archive.topics
    there = [
        name
        for name in (topics.batches(policy), topics.weights(policy), topics.state)
        if name in archive.manifest.topics
    ]
    messages = (
        message
        for name in there
        for partition_id in archive.partitions(name)
        for message in archive.messages(partition_id)
    )
    return fold_history(messages, archive.manifest.run_id, topics, policy)


def iterate_batches(
    archive: Archive, policy: str, batches: Sequence[BatchTrained]
) -> Iterator[tuple[BatchTrained, list[DecodedGroup]]]:
    """Yield a run's batches with their groups, in their order, as `trained_groups` does from the log.

    Each partition is read once. Groups of later batches wait in memory; they are no more than the window of the run's
    trainer held. Raises LineageBroken for a group that is not archived, and as `Archive.messages`.
    """
    topic = archive.topics.curated(policy)
    archive.partitions(topic)
    first_uses = FirstUseCache(ArchivedFirstUses(archive, topic))
    wanted: defaultdict[int, set[int]] = defaultdict(set)
    for use in (use for batch in batches for use in batch.groups):
        wanted[use.partition].add(use.offset)
    partitions = {partition: archive.messages((topic, partition)) for partition in wanted}
    held: dict[tuple[int, int], tuple[Message, CuratedGroup]] = {}

    def find(use: GroupUse) -> DecodedGroup:
        position = (use.partition, use.offset)
        while position not in held:
            message = next(partitions[use.partition], None)
            if message is None or message.offset > use.offset:
                raise LineageBroken(
                    f"{topic}[{use.partition}] of {archive.root} has no record at offset {use.offset}, but a batch "
                    f"names group {use.stream}:{use.number} there: {ANEW}"
                )
            if message.offset in wanted[use.partition]:
                held[use.partition, message.offset] = (message, codec.decode(message.value, CuratedGroup))
        message, curated = held.pop(position)
        if UseId.of(curated) != UseId.of(use):
            raise LineageBroken(
                f"{topic}[{use.partition}] of {archive.root} must hold group {use.stream}:{use.number} at offset "
                f"{use.offset}, as a batch says, but it holds {curated.stream}:{curated.number}: {ANEW}"
            )
        first = first_uses.complete(message, curated)
        if first is None:
            raise LineageBroken(
                f"a batch replays group {use.stream}:{use.number}, but {archive.root} lacks the record of its first "
                f"use: {ANEW}"
            )
        return decode_group(archive, first)

    for batch in batches:
        try:
            yield batch, [find(use) for use in batch.groups]
        except (ObjectMissing, ObjectCorrupt) as error:
            raise LineageBroken(f"version {batch.version} cannot be trained again ({error}): {ANEW}") from error
