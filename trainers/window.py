"""Curated groups that wait for training, earliest deadline first. No I/O."""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["surplus", "expired", "run_end", "dead", "missing"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A curated group in the window, with all that its outcome and the lineage need."""

    key: tuple[str, int, int]
    """(stream, number, use): the identity of one use of one group."""
    min_version: int
    """Oldest version that generated a token of the group; 0 is a version like any other."""
    deadline_version: int
    """Last version of the trainer at which the group may still be trained on: min_version + its staleness bound."""
    arrival: int
    """Running number in the order of arrival; breaks ties and is kept by checkpoints."""
    partition: int
    offset: int
    payload: object = None

    @property
    def is_replay(self) -> bool:
        """Whether the group was trained on, or at least curated, before."""
        return self.key[2] > 0


@dataclass(frozen=True, slots=True)
class Eviction:
    """A group that leaves the window untrained, and why."""

    entry: Waiting
    verdict: Verdict


class Window:
    """At most `capacity` fresh groups, and as many replays, served by (deadline_version, arrival).

    Neither kind takes the other's room: replays are mostly the most stale, and in one room a feeder that keeps it full
    of fresh groups would leave none of them. Every entry carries its own deadline, so fresh groups and replays with
    another staleness bound share one order.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a window holds at least 1 group, got capacity {capacity}")
        self._capacity = capacity
        self._entries: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Waiting) -> list[Eviction]:
        """Take one group in; of more than the capacity the most stale (it may be the newcomer) leaves as `surplus`."""
        bisect.insort(self._entries, entry, key=_deadline)
        kind = [waiting for waiting in self._entries if waiting.is_replay == entry.is_replay]
        if len(kind) <= self._capacity:
            return []
        stalest = min(kind, key=lambda waiting: (waiting.min_version, waiting.arrival))
        self._entries.remove(stalest)
        return [Eviction(stalest, "surplus")]

    def expire(self, current_version: int) -> list[Eviction]:
        """Evict what the trainer, now at `current_version`, may no longer train on.

        That is current_version > deadline_version, the same as current_version - min_version > max_staleness.
        """
        cut = bisect.bisect_left(self._entries, current_version, key=lambda waiting: waiting.deadline_version)
        expired, self._entries = self._entries[:cut], self._entries[cut:]
        return [Eviction(entry, "expired") for entry in expired]

    def take(self, n: int) -> list[Waiting] | None:
        """Take the n groups of the earliest deadlines, in order; None, and nothing taken, while fewer wait."""
        if len(self._entries) < n:
            return None
        taken, self._entries = self._entries[:n], self._entries[n:]
        return taken

    def leftovers(self) -> tuple[Waiting, ...]:
        """Show what waits now, in the order in which it would be served; the window keeps it."""
        return tuple(self._entries)


def _deadline(entry: Waiting) -> tuple[int, int]:
    return entry.deadline_version, entry.arrival
