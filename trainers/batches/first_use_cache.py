"""LRU cache of the encoded groups that replays refer to. What is not in it is read from the log again."""

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
"""Limit of the groups that are remembered, with what Python holds beside their bytes."""
RECORD_BYTES = 768
"""Bytes of a record without its group: objects, strings and key."""
MEMBER_BYTES = 48
"""An index, a reward and their entries in two tuples."""
MOST_OFFSETS = 65_536
"""Offsets that are remembered: some 150 bytes each."""

PartitionGroup: TypeAlias = tuple[int, GroupId]
"""Partition and group."""


class FirstUses(Protocol):
    """Where the records of first uses can be read again."""

    def at(self, partition: int, offset: int) -> Message | None:
        """Return the record at an offset; None when it is gone."""
        ...

    def of(self, replay: CuratedReplay) -> Message | None:
        """Return the first use of a replay; None when it is gone."""
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
    """LRU cache of one curated topic's groups, for replays. It remembers nothing before the first replay.

    Args:
        firsts: Source of the groups that are not remembered.
        most_bytes: Limit of the groups that are remembered; the least recently used leave first.
        most_offsets: Limit of the known offsets of first uses; the least recently used leave first.
    """

    def __init__(self, firsts: FirstUses, most_bytes: int = MOST_CACHE_BYTES, most_offsets: int = MOST_OFFSETS) -> None:
        self._source = firsts
        self._firsts: LRUCache[PartitionGroup, CuratedGroup] = LRUCache(most_bytes, estimate_bytes)
        self._offsets: LRUCache[PartitionGroup, int] = LRUCache(most_offsets)
        self._wanted = False
        self.read_again = 0
        """How many were read from the log."""

    def complete(self, message: Message, curated: CuratedGroup) -> CuratedGroup | None:
        """Return a curated record with its group: its own, or that of its first use.

        None for a replay whose first use is no longer on the log. Raises SchemaError when the first use cannot be read,
        and what reading it raises.
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
        self.read_again += 1
        offset = self._offsets.get((message.partition, GroupId.of(curated)))
        if offset is not None:
            return self._source.at(message.partition, offset)
        return self._source.of(replay_of(message, curated))

    def _remember(self, key: PartitionGroup, offset: int, first: CuratedGroup) -> None:
        self._offsets[key] = offset
        with suppress(ValueError):  # it is larger than all that may be remembered
            self._firsts[key] = first


def estimate_bytes(first: CuratedGroup) -> int:
    """Return what Python holds for a group, about: its bytes, its indices and rewards, the record and its key."""
    return len(first.group) + RECORD_BYTES + MEMBER_BYTES * max(len(first.kept), len(first.rewards))


def replay_of(message: Message, curated: CuratedGroup) -> CuratedReplay:
    """Return where a replay and its first use are."""
    return CuratedReplay(message.partition, message.offset, curated.stream, curated.number, curated.first_back)
