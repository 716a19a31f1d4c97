"""Compares the order of a policy's curated groups with that in which workers delivered them. No I/O.

A curator reads a partition of trajectories in order, and concludes each group before the next: no algorithm holds a
group back. So the first uses on a partition of `curated` are in the order of their deliveries. If they were not, the
same chain would not write the same curated records again.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator

from headrace.ops.audit.pages import LOW, PAGE_BITS, PAGE_NUMBERS
from headrace.schemas.ids import GroupId

MOST_KEPT = 1000
"""Largest number of disordered pairs that are kept."""


class DeliveryOrder:
    """Takes in the first uses of one policy or shadow, and then the deliveries, each partition in order.

    Only numbers with one delivery are compared. If there are several, a curator may have refused the first one: its
    dead letter may be newer than what was read of them, and a shadow reads what its policy's curator refused.

    Four bytes are kept for every number.
    """

    def __init__(self, policy_variant: str) -> None:
        self._policy_variant = policy_variant
        self._counts = Counter[int]()
        """Partition to the number of its first uses."""
        self._ranks: dict[tuple[str, int], array[int]] = {}
        """(stream, page) to the rank of each number's first use in its partition, from 1 on; 0 for none."""
        self._last: dict[int, tuple[int, GroupId]] = {}
        """Partition to the rank and the group of the delivery before."""
        self._pairs: list[tuple[GroupId, GroupId]] = []
        """Groups of which the first was curated after the second, but delivered before it."""
        self._is_repeated: dict[GroupId, bool] = {}
        """Groups of these pairs, and whether they were delivered again."""

    def fold_first_use(self, stream: str, number: int, partition: int) -> None:
        """Take in a first use that nobody sent back."""
        self._counts[partition] += 1
        page = self._ranks.setdefault((stream, number >> PAGE_BITS), array("I", bytes(4 * PAGE_NUMBERS)))
        page[number & LOW] = page[number & LOW] or self._counts[partition]

    def fold_delivery(self, stream: str, number: int, partition: int, *, is_only: bool) -> None:
        """Take in a delivery; `is_only` is False if there was one of the same number before, or it was sent back."""
        page = self._ranks.get((stream, number >> PAGE_BITS))
        if page is None:
            return
        rank, page[number & LOW] = page[number & LOW], 0
        group = GroupId(stream, number)
        if not is_only:
            if group in self._is_repeated:
                self._is_repeated[group] = True
            return
        if not rank:
            return
        before, neighbour = self._last.get(partition, (0, group))
        self._last[partition] = rank, group
        if rank < before and len(self._pairs) < MOST_KEPT:
            self._pairs.append((neighbour, group))
            self._is_repeated |= {neighbour: False, group: False}

    def problems(self) -> Iterator[str]:
        """Yield the groups that were curated in another order than they were delivered."""
        for first, second in self._pairs:
            if not (self._is_repeated[first] or self._is_repeated[second]):
                yield (
                    f"workers delivered {first} before {second}, but the curated records of {self._policy_variant} "
                    "are in the other order: a curator writes them in the order of the deliveries on a partition"
                )
