"""Which numbers of a partition are concluded: the curator's first step, before any claim check is read.

Per stream a low watermark, the set above it, and those whose conclusion was a dead letter: a copy of such a number that
`headrace redrive` sends back is new, once. A group's partition is its number modulo the partitions, so what a
partition sees of a stream is consecutive in `number // partitions`, and the set stays as small as the disorder.
"""

from __future__ import annotations

from collections.abc import Mapping


class Dedupe:
    """Concluded numbers of one input partition."""

    def __init__(self, partition: int, partitions: int) -> None:
        self._partition = partition
        self._partitions = partitions
        self._low: dict[str, int] = {}
        self._above: dict[str, set[int]] = {}
        self._dead: dict[str, set[int]] = {}

    def belongs(self, number: int) -> bool:
        """Tell whether a number is one of this partition's."""
        return number >= 0 and number % self._partitions == self._partition

    def conclude(self, stream: str, number: int) -> bool:
        """Mark a number of this partition as concluded; False when it was already."""
        index = number // self._partitions
        low, above = self._low.get(stream, 0), self._above.setdefault(stream, set())
        if index < low or index in above:
            return False
        above.add(index)
        while low in above:
            above.remove(low)
            low += 1
        self._low[stream] = low
        return True

    def bury(self, stream: str, number: int) -> None:
        """Note that a concluded number is dead: its conclusion was a dead letter."""
        self._dead.setdefault(stream, set()).add(number // self._partitions)

    def revive(self, stream: str, number: int) -> bool:
        """Take a number, which stays concluded, from the dead; False when it was not among them."""
        dead, index = self._dead.get(stream, set()), number // self._partitions
        if index not in dead:
            return False
        dead.remove(index)
        return True

    def snapshot(self) -> dict[str, dict[str, object]]:
        """Return the state as plain JSON."""
        return {
            s: {"low": self._low.get(s, 0), "above": sorted(above), "dead": sorted(self._dead.get(s, ()))}
            for s, above in sorted(self._above.items())
        }

    def restore(self, state: Mapping[str, Mapping[str, object]]) -> None:
        """Take what `snapshot` returned. Raises ValueError for anything else."""
        for stream, known in state.items():
            low, above, dead = known["low"], known["above"], known.get("dead", [])
            if not isinstance(low, int) or not isinstance(above, list) or not isinstance(dead, list):
                raise ValueError(f"state of stream {stream} is not a dedupe snapshot: {known!r:.80}")  # noqa: TRY004
            self._low[stream], self._above[stream], self._dead[stream] = low, set(above), set(dead)
