"""Train again on groups drawn at random, the fresher the likelier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.consumers.algorithms.draws import PhiloxDraws
from headrace.consumers.algorithms.replay import ReplayMemory
from headrace.consumers.algorithms.sum_tree import SumTree
from headrace.infra.recipe.ranges import above

LARGEST_EXPONENT = 500
"""Largest binary exponent of a weight that is kept; two to this is far from overflow."""


class ReplayRecency(ReplayMemory):
    """Draw a group with weight 2 ** (-age / half_life), age = clock - min_version in versions.

    All ages grow together, so 2 ** ((min_version - base) / half_life) draws alike for any base, and no weight changes
    with the clock. When one is due: see `ReplayMemory`.
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
        """Weigh a slot's group."""
        if slot >= len(self._groups):
            self._weights[slot] = 0.0
        elif self._exponent(slot) > LARGEST_EXPONENT:
            self._weigh_all()
        else:
            self._weights[slot] = 2.0 ** self._exponent(slot)

    def _exponent(self, slot: int) -> float:
        return (self._groups[slot].min_version - self._base) / self._half_life

    def _weigh_all(self) -> None:
        """Take the newest version for the base: once in hundreds of half-lives."""
        self._base = max(one.min_version for one in self._groups)
        self._weights = SumTree(2.0 ** self._exponent(slot) for slot in range(len(self._groups)))

    def draw(self) -> int:
        """Return a slot by weight."""
        if self._weights.total == 0:
            self._weigh_all()
        return self._weights.find(self._draws.next())

    def snapshot(self) -> dict[str, Any]:
        """Return what every replay has, how many draws there were, and the base of the weights."""
        return {**super().snapshot(), "draws": self._draws.count, "base": self._base}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a snapshot."""
        self._draws.count, self._base, self._weights = state["draws"], state["base"], SumTree()
        super().restore(state)
