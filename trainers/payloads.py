"""The encoded groups that replays are of: remembered while there is room, else read from the log again."""

from __future__ import annotations

from collections import OrderedDict

from infra.first_uses import Replay, find_first_uses
from infra.kafka import Message
from infra.run import Run
from infra.topic_reader import read_one
from schemas import codec
from schemas.records import CuratedGroup

MOST_BYTES = 64 << 20
"""Of the groups that are remembered."""
MOST_PLACES = 65_536
"""Places that are remembered: some 150 bytes each."""

Key = tuple[int, str, int]
"""(partition, stream, number)."""


class Payloads:
    """Of one curated topic. A run without replays remembers nothing: it begins with the first one.

    Args:
        run: Whose topic it is.
        policy: Likewise.
        most_bytes: Of the groups that are remembered, the least recently used leave first.
        most_places: Of first uses, the oldest leave first.
    """

    def __init__(self, run: Run, policy: str, most_bytes: int = MOST_BYTES, most_places: int = MOST_PLACES) -> None:
        self._run, self._topic = run, run.topics.curated(policy)
        self._most_bytes, self._most_places = most_bytes, most_places
        self._groups: OrderedDict[Key, bytes] = OrderedDict()
        self._bytes = 0
        self._places: OrderedDict[Key, int] = OrderedDict()
        self._wanted = False
        self.read_again = 0
        """How many were read from the log."""

    def whole(self, message: Message, curated: CuratedGroup) -> bytes | None:
        """Return the encoded group of a curated record: its own bytes, or those of its first use.

        None for a replay whose first use is no longer on the log. Raises SchemaError when the first use cannot be read,
        KafkaAway, KafkaRefused.
        """
        key = (message.partition, curated.stream, curated.number)
        if curated.group or not curated.use:
            if self._wanted and not curated.use:
                self._remember(key, message.offset, curated.group)
            return curated.group
        self._wanted = True
        if key in self._groups:
            self._groups.move_to_end(key)
            return self._groups[key]
        first = self._read(message, curated)
        if first is None:
            return None
        group = codec.decode(first.value, CuratedGroup).group
        self._remember(key, first.offset, group)
        return group

    def _read(self, message: Message, curated: CuratedGroup) -> Message | None:
        self.read_again += 1
        place = self._places.get((message.partition, curated.stream, curated.number))
        if place is not None:
            return read_one(self._run.connection, (self._topic, message.partition), place)
        replay = replay_of(message, curated)
        return find_first_uses(self._run.connection, self._topic, self._run.run_id, [replay]).get(replay)

    def _remember(self, key: Key, offset: int, group: bytes) -> None:
        self._places[key] = offset
        if len(self._places) > self._most_places:
            self._places.popitem(last=False)
        self._bytes += len(group) - len(self._groups.pop(key, b""))
        self._groups[key] = group
        while self._bytes > self._most_bytes:
            self._bytes -= len(self._groups.popitem(last=False)[1])


def replay_of(message: Message, curated: CuratedGroup) -> Replay:
    """Return where a replay stands and what it is of."""
    return Replay(message.partition, message.offset, curated.stream, curated.number, curated.first_back)
