"""Common base of replays: when a replay is due, which groups are eligible, and the memory of groups."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.consumers.algorithms import contract
from headrace.consumers.algorithms.contract import LARGEST_NUMBER, Candidate, Keep, Result
from headrace.infra.recipe.ranges import at_least, within
from headrace.schemas.ids import GroupId
from headrace.schemas.records import GroupUse

LARGEST_CAPACITY = 20_000
"""Most groups in memory. The curator's snapshot is one record of at most 8 MiB, with some 90 bytes per group: this
leaves room for the chains of three revisions and the state of dedupe."""
CREDIT_ROUNDING = 1e-9
"""Tolerance by which the sum of credits may be below a whole number when a replay is due."""


@dataclass(slots=True)
class HeldGroup:
    """A reference, without payload, to a group that may be replayed."""

    stream: str
    number: int
    min_version: int
    max_version: int
    uses: int
    """Number of uses so far, the first included."""
    arrival: int
    """Running number in order of arrival."""
    priority: float


class ReplayMemory:
    """Base of replays: it holds every group that passes, and replays earlier groups.

    A share `ratio` of all groups that come out are replays: each fresh group adds ratio / (1 - ratio) credits, and
    while there is a whole credit and an eligible group, a group is drawn and a credit subtracted. An earlier group of
    the partition is eligible while its age, clock - min_version, is at most `max_staleness`, and it has fewer than
    `max_uses` uses, the first included. At most `capacity` groups are held; the oldest arrival leaves first.

    A group costs O(log capacity), memory is O(capacity + max_staleness), and the snapshot some 60 bytes for each group.
    """

    def __init__(self, ratio: float, capacity: int, max_uses: int, max_staleness: int) -> None:
        if not 0 <= ratio < 1:
            raise ValueError(f"ratio, a share of all groups, must be from 0 to below 1; got {ratio}")
        at_least(1, capacity=capacity)
        at_least(2, max_uses=max_uses)
        within(0, LARGEST_NUMBER, max_staleness=max_staleness)
        if capacity > LARGEST_CAPACITY:
            raise ValueError(
                f"capacity must be at most {LARGEST_CAPACITY:,} groups, the most that a snapshot holds; got {capacity}"
            )
        self._credit = ratio / (1 - ratio)
        self._capacity = capacity
        self._max_uses = max_uses
        self._max_staleness = max_staleness
        self._fresh = self._replayed = self._arrivals = 0
        self._forget_all()

    def _forget_all(self) -> None:
        self._groups: list[HeldGroup] = []
        """The held groups, without gaps: a slot is an index of this list."""
        self._slots: OrderedDict[int, int] = OrderedDict()
        """Slot by arrival, oldest first."""
        self._of_version: dict[int, dict[int, None]] = {}
        """Arrivals by min_version."""
        self._versions: list[int] = []
        """The min_versions as a heap."""

    # ------------------------------------------------------------------------------------- what makes one like no other

    def draw(self) -> int:
        """Return the slot of the next group to replay; at least one is held."""
        raise NotImplementedError

    def can_take(self, candidate: Candidate) -> bool:  # noqa: ARG002 - for subclasses that choose
        """Return whether to hold a group."""
        return True

    def priority(self, candidate: Candidate) -> float:  # noqa: ARG002 - for subclasses with priorities
        """Return the priority to store with a group."""
        return 0.0

    def note_slot(self, slot: int) -> None:
        """Take in that a slot now has another group, or none if it is beyond the last."""

    def weight(self, slot: int, clock: int) -> float:  # noqa: ARG002 - for subclasses that draw unevenly
        """Return the importance weight of a drawn group."""
        return 1.0

    # ---------------------------------------------------------------------------------------------------- a group comes

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:
        """Keep the group, return the due replays, then hold the group.

        Steps that may fail come first, so that the group's dead letter does not lose counted replays. The failed group
        still counts as fresh, which is harmless: due replays come with the next group.
        """
        self.forget_stale(clock)
        self._fresh += 1
        held = self._build_held(candidate, clock)
        results: list[Result] = [Keep(candidate)]
        due = math.floor(self._fresh * self._credit + CREDIT_ROUNDING) - self._replayed
        while due > 0 and self._groups:
            results.append(self._replay(self.draw(), clock))
            due -= 1
        if held is not None:
            self._hold(held)
        return results

    def _build_held(self, candidate: Candidate, clock: int) -> HeldGroup | None:
        """Return the reference to hold, None if the group is not eligible. Raises as `can_take` and `priority`."""
        low, high, group = candidate.min_version, candidate.max_version, candidate.group
        if low < 0 or clock - low > self._max_staleness or not self.can_take(candidate):
            return None
        return HeldGroup(group.stream, group.number, low, high, 1, self._arrivals, self.priority(candidate))

    def _replay(self, slot: int, clock: int) -> contract.Replay:
        one = self._groups[slot]
        weight = self.weight(slot, clock)
        replay = contract.Replay(
            GroupUse(one.stream, one.number, one.uses),
            deadline_version=one.min_version + self._max_staleness,
            min_version=one.min_version,
            max_version=one.max_version,
            weight=weight,
        )
        self._replayed += 1
        one.uses += 1
        if one.uses >= self._max_uses:
            self._remove(one.arrival)
        return replay

    def _hold(self, held: HeldGroup) -> None:
        if len(self._groups) == self._capacity:
            self._remove(next(iter(self._slots)))
        self._insert(held)
        self._arrivals += 1
        self.note_slot(len(self._groups) - 1)

    def _insert(self, one: HeldGroup) -> None:
        self._slots[one.arrival] = len(self._groups)
        self._groups.append(one)
        if one.min_version not in self._of_version:
            self._of_version[one.min_version] = {}
            heapq.heappush(self._versions, one.min_version)
        self._of_version[one.min_version][one.arrival] = None

    def _remove(self, arrival: int) -> None:
        """Forget a group; the last group moves into its slot."""
        slot, last = self._slots.pop(arrival), self._groups.pop()
        if last.arrival == arrival:
            del self._of_version[last.min_version][arrival]
        else:
            del self._of_version[self._groups[slot].min_version][arrival]
            self._groups[slot] = last
            self._slots[last.arrival] = slot
            self.note_slot(slot)
        self.note_slot(len(self._groups))

    def forget_stale(self, clock: int) -> None:
        """Forget groups older than `max_staleness`, as the next group would."""
        while self._versions and clock - self._versions[0] > self._max_staleness:
            version = heapq.heappop(self._versions)
            for arrival in list(self._of_version[version]):
                self._remove(arrival)
            del self._of_version[version]

    def holds(self) -> Iterable[GroupId]:
        """Return every group that is held."""
        return (GroupId(one.stream, one.number) for one in self._groups)

    # ------------------------------------------------------------------------------------------------------------ state

    def snapshot(self) -> dict[str, Any]:
        """Return counters and references, as plain JSON."""
        streams = sorted({one.stream for one in self._groups})
        index_of = {stream: number for number, stream in enumerate(streams)}
        return {
            "fresh": self._fresh,
            "replayed": self._replayed,
            "arrivals": self._arrivals,
            "streams": streams,
            "groups": [
                [index_of[g.stream], g.number, g.min_version, g.max_version, g.uses, g.arrival, g.priority]
                for g in self._groups
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a snapshot; every group gets its old slot."""
        self._forget_all()
        self._fresh, self._replayed, self._arrivals = state["fresh"], state["replayed"], state["arrivals"]
        groups = [HeldGroup(state["streams"][stream], *rest) for stream, *rest in state["groups"]]
        for one in groups:
            self._insert(one)
        self._slots = OrderedDict(sorted(self._slots.items()))
        self._of_version = {version: dict.fromkeys(sorted(arrivals)) for version, arrivals in self._of_version.items()}
        for slot in range(len(groups)):
            self.note_slot(slot)
