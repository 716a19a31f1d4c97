"""LRU cache of the encoded groups that replays refer to. Other groups are read from the log again."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol, TypeAlias

from cachetools import LRUCache

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import read_one
from headrace.infra.run.first_uses import CuratedReplay, complete_replay, find_first_uses
from headrace.infra.run.run import Run
from headrace.schemas import codec
from headrace.schemas.ids import GroupId
from headrace.schemas.records import CuratedGroup

MOST_CACHE_BYTES = 64 << 20
"""Most bytes of cached groups, including Python's overhead."""
RECORD_BYTES = 768
"""Bytes of a record without its group: objects, strings and key."""
MEMBER_BYTES = 48
"""Bytes of an index, a reward and their entries in two tuples."""
MOST_OFFSETS = 65_536
"""Most cached offsets: some 150 bytes each."""

PartitionGroup: TypeAlias = tuple[int, GroupId]
"""Partition and group."""


class FirstUses(Protocol):
    """Source from which the records of first uses can be read again."""

    def at(self, partition: int, offset: int) -> Message | None:
        """Return the record at an offset; None if it is deleted."""
        ...

    def of(self, replay: CuratedReplay) -> Message | None:
        """Return the first use of a replay; None if it is deleted."""
        ...


class LoggedFirstUses:
    """First uses on a run's curated topic. Raises KafkaAway, KafkaRefused."""

    def __init__(self, run: Run, policy_variant: str) -> None:
        self._run, self._topic = run, run.topics.curated(policy_variant)

    def at(self, partition: int, offset: int) -> Message | None:
        """Return the record at an offset."""
        return read_one(self._run.connection, (self._topic, partition), offset)

    def of(self, replay: CuratedReplay) -> Message | None:
        """Return the first use of a replay."""
        return find_first_uses(self._run.connection, self._topic, self._run.run_id, [replay]).get(replay)


class FirstUseCache:
    """LRU cache of one curated topic's groups, for replays. It stores nothing before the first replay.

    Args:
        firsts: Source of groups that are not in the cache.
        most_bytes: Most bytes of cached groups; the least recently used leave first.
        most_offsets: Most cached offsets of first uses; the least recently used leave first.
    """

    def __init__(self, firsts: FirstUses, most_bytes: int = MOST_CACHE_BYTES, most_offsets: int = MOST_OFFSETS) -> None:
        self._source = firsts
        self._firsts: LRUCache[PartitionGroup, CuratedGroup] = LRUCache(most_bytes, estimate_bytes)
        self._offsets: LRUCache[PartitionGroup, int] = LRUCache(most_offsets)
        self._wanted = False

    def complete(self, message: Message, curated: CuratedGroup) -> CuratedGroup | None:
        """Return a curated record with its group: its own, or that of its first use.

        Returns None for a replay whose first use is no longer on the log. Raises SchemaError for an unreadable first
        use, and the errors of reading the log.
        """
        key = (message.partition, GroupId.of(curated))
        if curated.group or not curated.use:
            if self._wanted and not curated.use:
                self._remember(key, message.offset, curated)
            return curated
        self._wanted = True
        first = self._firsts.get(key)
        if first is None:
            found = self._read(message, curated)
            if found is None:
                return None
            first = codec.decode(found.value, CuratedGroup)
            self._remember(key, found.offset, first)
        return complete_replay(curated, first)

    def _read(self, message: Message, curated: CuratedGroup) -> Message | None:
        offset = self._offsets.get((message.partition, GroupId.of(curated)))
        if offset is not None:
            return self._source.at(message.partition, offset)
        return self._source.of(replay_of(message, curated))

    def _remember(self, key: PartitionGroup, offset: int, first: CuratedGroup) -> None:
        self._offsets[key] = offset
        with suppress(ValueError):  # it is larger than the whole cache
            self._firsts[key] = first


def estimate_bytes(first: CuratedGroup) -> int:
    """Return roughly how many bytes Python needs for a group: its bytes, indices, rewards, record and key."""
    return len(first.group) + RECORD_BYTES + MEMBER_BYTES * max(len(first.kept), len(first.rewards))


def replay_of(message: Message, curated: CuratedGroup) -> CuratedReplay:
    """Return the places of a replay and of its first use."""
    return CuratedReplay(message.partition, message.offset, curated.stream, curated.number, curated.first_back)
