"""Knows which numbers of a partition are concluded: the curator's first step, before any claim check is read.

A group's partition is its number modulo the number of partitions, so a partition's numbers of a stream are consecutive
in `number // partitions`, the *index*. Concluded indices are stored as runs per stream, so memory grows with the gaps
(numbers in flight or lost), not with the length of a training. Numbers concluded by a dead letter are stored too,
because a copy that `headrace redrive` sends back counts as new, once. Beyond MOST_DEAD_KEPT these are forgotten; then a
copy may be a repetition or not, and `has_forgotten_dead` returns True.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, TypeGuard

MOST_RUNS = 10_000
"""Most runs of all streams. Normal disorder does not cause more: then somebody invents numbers."""
MOST_STREAMS = 1_000
MOST_DEAD_KEPT = 100_000


class Dedupe:
    """Concluded numbers of one input partition."""

    def __init__(self, partition: int, partitions: int) -> None:
        self._partition = partition
        self._partitions = partitions
        self._runs: dict[str, list[list[int]]] = {}
        """[first, last + 1] of every run of concluded indices, by stream, in order, with gaps between runs."""
        self._dead: dict[str, set[int]] = {}
        self._forgot: set[str] = set()
        """Streams of which dead numbers were forgotten."""

    def is_own(self, number: int) -> bool:
        """Return whether a number belongs to this partition."""
        return number >= 0 and number % self._partitions == self._partition

    def has_room(self, stream: str, number: int) -> bool:
        """Return whether there is room for a number; False protects against endless invented numbers."""
        runs = self._runs.get(stream)
        if sum(map(len, self._runs.values())) < MOST_RUNS:
            return runs is not None or len(self._runs) < MOST_STREAMS
        if runs is None:
            return False
        index = number // self._partitions
        after = bisect_right(runs, index, key=_begin_of)
        return (after > 0 and index <= runs[after - 1][1]) or (after < len(runs) and index + 1 == runs[after][0])

    def conclude(self, stream: str, number: int) -> bool:
        """Mark a number of this partition as concluded; return False if it was concluded already."""
        index = number // self._partitions
        runs = self._runs.setdefault(stream, [])
        after = bisect_right(runs, index, key=_begin_of)
        if after and index < runs[after - 1][1]:
            return False
        begin, end = index, index + 1
        if after < len(runs) and runs[after][0] == end:
            end = runs.pop(after)[1]
        if after and runs[after - 1][1] == begin:
            runs[after - 1][1] = end
        else:
            runs.insert(after, [begin, end])
        return True

    def low_watermark(self, stream: str) -> int:
        """Return the number below which all numbers of this partition are concluded."""
        runs = self._runs.get(stream)
        first_open = runs[0][1] if runs and runs[0][0] == 0 else 0
        return first_open * self._partitions + self._partition

    def mark_dead(self, stream: str, number: int) -> None:
        """Note that a dead letter concluded a number. Beyond MOST_DEAD_KEPT, it is forgotten at once."""
        if sum(map(len, self._dead.values())) < MOST_DEAD_KEPT:
            self._dead.setdefault(stream, set()).add(number // self._partitions)
        else:
            self._forgot.add(stream)

    def has_forgotten_dead(self, stream: str) -> bool:
        """Return whether a dead number of this stream was ever forgotten."""
        return stream in self._forgot

    def reopen(self, stream: str, number: int) -> bool:
        """Remove a number from the dead numbers; it stays concluded. Return False if it was not dead."""
        dead, index = self._dead.get(stream, set()), number // self._partitions
        if index not in dead:
            return False
        dead.remove(index)
        return True

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Return the state as plain JSON."""
        return {
            stream: {
                "runs": [list(run) for run in runs],
                "dead": sorted(self._dead.get(stream, ())),
                "forgot": stream in self._forgot,
            }
            for stream, runs in sorted(self._runs.items())
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a snapshot. Raises ValueError for anything else."""
        if not isinstance(state, Mapping):
            raise ValueError(f"a dedupe snapshot must be a mapping of streams; got {state!r:.80}")  # noqa: TRY004 - the value is wrong
        for stream, known in state.items():
            runs, dead = (known.get("runs"), known.get("dead")) if isinstance(known, Mapping) else (None, None)
            if (
                not _is_list_of_runs(runs)
                or not isinstance(dead, list)
                or not all(type(index) is int for index in dead)
            ):
                raise ValueError(f"state of stream {stream} is not a dedupe snapshot: {known!r:.80}")
            self._runs[stream], self._dead[stream] = [list(run) for run in runs], set(dead)
            if known.get("forgot"):
                self._forgot.add(stream)


def _begin_of(run: list[int]) -> int:
    return run[0]


def _is_list_of_runs(known: object) -> TypeGuard[list[list[int]]]:
    end = -1
    for run in known if isinstance(known, list) else [None]:
        if not isinstance(run, list) or len(run) != 2 or not all(type(bound) is int for bound in run):
            return False
        if not end < run[0] < run[1]:
            return False
        end = run[1]
    return True
