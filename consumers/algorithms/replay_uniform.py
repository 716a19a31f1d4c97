"""Replays groups drawn uniformly at random."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.consumers.algorithms.draws import PhiloxDraws
from headrace.consumers.algorithms.replay import ReplayMemory


class ReplayUniform(ReplayMemory):
    """Draw every eligible group with the same probability. `ReplayMemory` says when a replay is due."""

    def __init__(
        self,
        *,
        ratio: float = 0.3,
        capacity: int = 10_000,
        max_uses: int = 4,
        max_staleness: int = 8,
        seed: int = 1,
    ) -> None:
        super().__init__(ratio, capacity, max_uses, max_staleness)
        self._draws = PhiloxDraws(seed, "replay_uniform")

    def draw(self) -> int:
        """Draw a slot uniformly."""
        return int(self._draws.next() * len(self._groups))

    def snapshot(self) -> dict[str, Any]:
        """Return the base state and the number of draws."""
        return {**super().snapshot(), "draws": self._draws.count}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a snapshot."""
        self._draws.count = state["draws"]
        super().restore(state)
