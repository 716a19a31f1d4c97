"""Weights with changes and weighted draws in O(log n)."""

from __future__ import annotations

from collections.abc import Iterable


class SumTree:
    """A weight of 0 or more for each slot 0, 1, 2 ...; all are 0 at first.

    Each node is exactly the sum of its two children, so equal weights give equal draws, whatever the order of changes.
    """

    def __init__(self, weights: Iterable[float] = ()) -> None:
        self._build(list(weights))

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return self._nodes[1]

    def __getitem__(self, slot: int) -> float:
        return self._nodes[self._size + slot]

    def __setitem__(self, slot: int, weight: float) -> None:
        if slot >= self._size:
            self._build(self._nodes[self._size :] + [0.0] * (slot + 1 - self._size))
        nodes, node = self._nodes, self._size + slot
        nodes[node] = weight
        while node > 1:
            node >>= 1
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]

    def find(self, share: float) -> int:
        """Return the slot at `share`, in [0, 1), of the total; never a slot of weight 0. The total must be above 0."""
        nodes, node = self._nodes, 1
        rest = share * nodes[1]
        while node < self._size:
            node *= 2
            if rest >= nodes[node] and nodes[node + 1] > 0:
                rest -= nodes[node]
                node += 1
        return node - self._size

    def _build(self, leaves: list[float]) -> None:
        self._size = 1 << max(0, (len(leaves) - 1).bit_length())
        self._nodes = [0.0] * self._size + leaves + [0.0] * (self._size - len(leaves))
        for node in range(self._size - 1, 0, -1):
            self._nodes[node] = self._nodes[2 * node] + self._nodes[2 * node + 1]
