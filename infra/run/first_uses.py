"""Finds the first uses of replays, whose records hold the group's bytes, rewards and kept trajectories.

A replay and its first use are on the same partition of the curated topic, the first use first. The search goes
backwards from the place that the replay names, in growing steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace.infra.kafka.clients import Connection, Message
from headrace.infra.kafka.topic_offsets import fetch_begin_offsets
from headrace.infra.kafka.topic_reader import PartitionId, read_range
from headrace.schemas.headers import HeaderError, Stamp, task_key
from headrace.schemas.records import CuratedGroup

FIRST_STEP = 64
"""Offsets in the first search step before the named place of a first use; each further step is twice as long."""


@dataclass(frozen=True, slots=True)
class CuratedReplay:
    """Place and group of a replay."""

    partition: int
    offset: int
    stream: str
    number: int
    back: int = 0
    """See `CuratedGroup.first_back`."""


def find_first_uses(
    connection: Connection, topic: str, run_id: str, replays: Iterable[CuratedReplay]
) -> dict[CuratedReplay, Message]:
    """Return the records of the replays' first uses that are still on the log; wait for open transactions.

    Raises KafkaAway or KafkaRefused.
    """
    by_partition: dict[int, list[CuratedReplay]] = {}
    for replay in replays:
        by_partition.setdefault(replay.partition, []).append(replay)
    begin = fetch_begin_offsets(connection, ((topic, partition) for partition in by_partition))
    found: dict[CuratedReplay, Message] = {}
    for partition_id, first in begin.items():
        found |= _search_partition(connection, partition_id, first, run_id, by_partition[partition_id[1]])
    return found


def _search_partition(
    connection: Connection, partition_id: PartitionId, begin: int, run_id: str, replays: list[CuratedReplay]
) -> dict[CuratedReplay, Message]:
    wanted: dict[bytes, list[CuratedReplay]] = {}
    for replay in replays:
        wanted.setdefault(task_key(replay.stream, replay.number), []).append(replay)
    found: dict[CuratedReplay, Message] = {}
    # Never search after the replay itself, whatever a broken record says.
    end = max(replay.offset - max(replay.back, 0) for replay in replays) + 1
    # Every earlier record may be followed by a marker; aborted records move it further back.
    low, step = min(replay.offset - 2 * max(replay.back, 0) for replay in replays) - FIRST_STEP, FIRST_STEP
    while wanted and end > begin:
        low = max(begin, min(low, end - step))
        for message in read_range(connection, partition_id, low, end):
            if message.key in wanted and is_first_use(message, run_id):
                found |= dict.fromkeys(wanted.pop(message.key), message)
        end, step = low, 2 * step
    return found


def complete_replay(replay: CuratedGroup, first: CuratedGroup) -> CuratedGroup:
    """Return a replay completed from the record of its first use."""
    return replace(replay, group=first.group, kept=first.kept, rewards=first.rewards)


def is_first_use(message: Message, run_id: str) -> bool:
    """Return whether a curated record is, by its headers, the first use of a group of this run."""
    try:
        stamp = Stamp.from_headers(message.headers)
    except HeaderError:
        return False
    return stamp.run_id == run_id and not stamp.use and stamp.key == message.key
