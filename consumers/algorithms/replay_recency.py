"""Replays random groups, with more probability for fresher groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.consumers.algorithms.draws import PhiloxDraws
from headrace.consumers.algorithms.replay import ReplayMemory
from headrace.consumers.algorithms.sum_tree import SumTree
from headrace.infra.recipe.ranges import above

LARGEST_EXPONENT = 500
"""Largest binary exponent of a weight, far from overflow."""


class ReplayRecency(ReplayMemory):
    """Draw a group with weight 2 ** (-age / half_life), age = clock - min_version in versions.

    All ages grow together, so weights 2 ** ((min_version - base) / half_life) give the same draws for any base, and
    need no update when the clock moves. `ReplayMemory` says when a replay is due.
    """

    def __init__(
        self,
        *,
        ratio: float = 0.3,
        capacity: int = 10_000,
        max_uses: int = 4,
        max_staleness: int = 8,
        half_life: float = 4.0,
        seed: int = 1,
    ) -> None:
        above(0, half_life=half_life)
        self._half_life = half_life
        self._base = 0
        self._draws = PhiloxDraws(seed, "replay_recency")
        self._weights = SumTree()
        super().__init__(ratio, capacity, max_uses, max_staleness)

    def note_slot(self, slot: int) -> None:
        """Update the weight of a slot's group."""
        if slot >= len(self._groups):
            self._weights[slot] = 0.0
        elif self._exponent(slot) > LARGEST_EXPONENT:
            self._weigh_all()
        else:
            self._weights[slot] = 2.0 ** self._exponent(slot)

    def _exponent(self, slot: int) -> float:
        return (self._groups[slot].min_version - self._base) / self._half_life

    def _weigh_all(self) -> None:
        """Compute all weights with the newest version as base; needed once in hundreds of half-lives."""
        self._base = max(one.min_version for one in self._groups)
        self._weights = SumTree(2.0 ** self._exponent(slot) for slot in range(len(self._groups)))

    def draw(self) -> int:
        """Draw a slot with probability proportional to its weight."""
        if self._weights.total == 0:
            self._weigh_all()
        return self._weights.find(self._draws.next())

    def snapshot(self) -> dict[str, Any]:
        """Return the base state, the number of draws, and the base of the weights."""
        return {**super().snapshot(), "draws": self._draws.count, "base": self._base}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a snapshot."""
        self._draws.count, self._base, self._weights = state["draws"], state["base"], SumTree()
        super().restore(state)
