"""Replays the newest groups."""

from __future__ import annotations

from headrace.consumers.algorithms.replay import ReplayMemory


class ReplayLatest(ReplayMemory):
    """Replay the eligible group that arrived last, without random draws.

    A replay does not make a group newer, so a group is replayed until its uses are up. `ReplayMemory` says when a
    replay is due. This is AstraFlow's only replay, there without a bound on staleness.
    """

    def __init__(
        self, *, ratio: float = 0.3, capacity: int = 10_000, max_uses: int = 4, max_staleness: int = 8
    ) -> None:
        super().__init__(ratio, capacity, max_uses, max_staleness)

    def draw(self) -> int:
        """Return the slot of the newest arrival."""
        return self._slots[next(reversed(self._slots))]
