"""The records that replays are of, which hold what replays only name: the group's bytes, its rewards, what is kept.

Both are on one partition of the curated topic, the first use before all others. Its record is looked for backwards, in
steps that grow, from where the replay names it: nothing is kept but what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headrace.infra.kafka.clients import Connection, Message, fetch_begin_offsets
from headrace.infra.kafka.topic_reader import PartitionId, read_range
from headrace.schemas.headers import HeaderError, Stamp, task_key
from headrace.schemas.records import CuratedGroup

FIRST_STEP = 64
"""Offsets that are looked through behind the one where a first use should be; each further step is twice as long."""


@dataclass(frozen=True, slots=True)
class CuratedReplay:
    """Where a replay is, and of which group."""

    partition: int
    offset: int
    stream: str
    number: int
    back: int = 0
    """See `CuratedGroup.first_back`."""


def find_first_uses(
    connection: Connection, topic: str, run_id: str, replays: Iterable[CuratedReplay]
) -> dict[CuratedReplay, Message]:
    """Return the record of each replay's first use, of those that are still on the log. Waits for what is open there.

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
    # Nobody finds anything behind the replay itself, whatever a broken record says.
    end = max(replay.offset - max(replay.back, 0) for replay in replays) + 1
    # Every record before it may have a marker behind it; aborted records are further back.
    low, step = min(replay.offset - 2 * max(replay.back, 0) for replay in replays) - FIRST_STEP, FIRST_STEP
    while wanted and end > begin:
        low = max(begin, min(low, end - step))
        for message in read_range(connection, partition_id, low, end):
            if message.key in wanted and is_first_use(message, run_id):
                found |= dict.fromkeys(wanted.pop(message.key), message)
        end, step = low, 2 * step
    return found


def complete_replay(replay: CuratedGroup, first: CuratedGroup) -> CuratedGroup:
    """Return a replay with what only the record of its first use has."""
    return replace(replay, group=first.group, kept=first.kept, rewards=first.rewards)


def is_first_use(message: Message, run_id: str) -> bool:
    """Return, by its headers, whether a curated record is the first use of a group of this run."""
    try:
        stamp = Stamp.from_headers(message.headers)
    except HeaderError:
        return False
    return stamp.run_id == run_id and not stamp.use and stamp.key == message.key
