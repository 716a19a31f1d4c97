"""Finds recipe revisions that are finished on a partition, so that their chains and memory can be removed.

The feeder issues the numbers of a stream in order, and a number keeps its revision over all attempts. So all later
numbers have the same or a later revision. A revision is finished when, for every stream of its policy, the partition
has concluded all numbers below one of a later revision. If such a number never comes, or a stream issues no more
numbers, the revision stays. If `headrace redrive` later sends back a copy, the chain of its revision starts empty, and
ends again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any


class ChainEnds:
    """The lowest number seen of every unfinished revision and stream."""

    def __init__(self) -> None:
        self._lowest: dict[int, dict[str, int]] = {}

    @property
    def revisions(self) -> Collection[int]:
        """Revisions that were seen and are not finished."""
        return self._lowest.keys()

    def note_number(self, revision: int, stream: str, number: int) -> None:
        """Take in a group."""
        lowest = self._lowest.setdefault(revision, {})
        if number < lowest.get(stream, number + 1):
            lowest[stream] = number

    def pop_finished(self, streams: Collection[str], low_watermark: Callable[[str], int]) -> list[int]:
        """Return the finished revisions, and forget them.

        Args:
            streams: All streams that train the policy.
            low_watermark: Returns, for a stream, the number below which the partition has concluded all its numbers.
        """
        newest, found = max(self._lowest, default=0), []
        for revision in sorted(self._lowest):
            if revision == newest or not all(
                self._is_past(revision, stream, low_watermark(stream)) for stream in streams
            ):
                break
            found.append(revision)
        for revision in found:
            del self._lowest[revision]
        return found

    def _is_past(self, revision: int, stream: str, low_watermark: int) -> bool:
        later = (lowest[stream] for other, lowest in self._lowest.items() if other > revision and stream in lowest)
        return min(later, default=low_watermark + 1) <= low_watermark

    def snapshot(self) -> dict[str, dict[str, int]]:
        """Return the state as plain JSON."""
        return {str(revision): dict(sorted(lowest.items())) for revision, lowest in sorted(self._lowest.items())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what `snapshot` returned."""
        self._lowest = {int(revision): dict(lowest) for revision, lowest in state.items()}
