"""Follows a trainer's positions on its curated topic, as its records on `batches` report them. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from headrace.ops.audit.bounds import MOST_AHEAD
from headrace.ops.audit.problems import Problems


class TrainerPositions:
    """The positions of the trainer of one policy or shadow; records come in their order.

    Args:
        curated: Name of its curated topic.
    """

    def __init__(self, curated: str) -> None:
        self.found = Problems()
        """Problems that are found while the records are read."""
        self._curated = curated
        self._last: dict[int, int] = {}
        self._settled: dict[int, int] = {}
        self._all_reported: dict[int, int] = {}
        self._ages: deque[dict[int, int]] = deque(maxlen=MOST_AHEAD + 2)
        """The positions at the newest versions, oldest first."""

    def fold_record(self, positions: Mapping[int, int], where: str, *, version: int, settles: bool) -> None:
        """Take in the positions in a record.

        Args:
            positions: Partition to the trainer's next offset.
            where: Position of the record that gives them.
            version: Version of the record; -1 for none.
            settles: Whether the record names all groups that had left the window untrained. Every record does, except
                that of a dead letter.
        """
        for partition in sorted(self._last.keys() - positions.keys()) if version >= 0 else ():
            self.found.add_sentence(
                f"the record of version {version} gives no position on {self._curated}[{partition}], but an earlier "
                f"record does: {where}"
            )
        for partition, offset in positions.items():
            before = self._last.get(partition, 0)
            if offset < before:
                partition_name = f"{self._curated}[{partition}]"
                self.found.add_sentence(
                    f"the trainer's position on {partition_name} went back from {before} to {offset}: {where}"
                )
            self._last[partition] = offset
        if settles:
            self._settled = dict(self._last)
        if version >= 0:
            self._ages.append(dict(self._last))

    def check_hint(self, name: str, hint: tuple[int, int], positions: Mapping[int, int], where: str) -> None:
        """Compare the (partition, offset) of a trained group with the positions in its record.

        Args:
            name: The version and its policy.
            hint: Position of the group's curated record; -1 if it is not known.
            positions: The positions in the record.
            where: Position of the record.
        """
        partition, offset = hint
        if 0 <= (end := positions.get(partition, offset + 1)) <= offset:
            self.found.add_sentence(
                f"{name} was trained on the group at {self._curated}[{partition}]@{offset}, but its trainer had read "
                f"that partition only to offset {end}: {where}"
            )

    def mark_all_groups_reported(self) -> None:
        """Record that the trainer has reported what happened to all groups that it held, because the run is over."""
        self._all_reported = dict(self._last)

    def has_reported_all_groups(self, ends: Mapping[int, int]) -> bool:
        """Return whether the trainer had read up to these offsets, by partition, when it reported all its groups."""
        return all(self._all_reported.get(partition, 0) >= end for partition, end in ends.items())

    def find_past_end(self, ends: Mapping[tuple[str, int], int]) -> Iterator[str]:
        """Yield the positions that are past the end of the curated topic; the ends were read later."""
        for partition, offset in self._last.items():
            end = ends.get((self._curated, partition), offset)
            if offset > end:
                name = f"{self._curated}[{partition}]"
                yield f"the trainer's position on {name} is {offset}, but the partition ends at {end}"

    @property
    def last(self) -> Mapping[int, int]:
        """Partition of the curated topic to the trainer's next offset, as last reported."""
        return self._last

    @property
    def settled(self) -> Mapping[int, int]:
        """The last positions from a record that names all groups that had left the window untrained."""
        return self._settled

    @property
    def aged(self) -> Mapping[int, int]:
        """The positions at a version so early that all groups that expired by then must have been evicted since."""
        return self._ages[0] if len(self._ages) == self._ages.maxlen else {}
