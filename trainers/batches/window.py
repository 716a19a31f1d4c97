"""The window: curated groups that wait for training, in serving order. No I/O."""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, Literal, TypeAlias, TypeVar

from headrace.schemas.ids import UseId

ServingOrder = Literal["edf", "fifo", "lifo", "random"]
Rank: TypeAlias = tuple[int, int]
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
"""Payload of a waiting group."""
MOST_WINDOW_BYTES = 4 << 30
"""Most bytes of the fresh groups in a window, and of its replays."""
STALE_SLACK = 64
"""Stale entries that a heap may hold beyond the number of waiting groups."""
EvictionVerdict = Literal["surplus", "expired", "run_end", "dead", "missing"]


@dataclass(frozen=True, slots=True)
class Waiting(Generic[T_co]):
    """A curated group in the window, with the data for its outcome and for lineage."""

    use_id: UseId
    """Group and number of the use."""
    min_version: int
    """Oldest version that generated a token of the group."""
    deadline_version: int
    """Last trainer version that may train on the group: min_version + its staleness bound."""
    arrival: int
    """Running number in order of arrival; it breaks ties and is stored in checkpoints."""
    partition: int
    offset: int
    payload: T_co
    size_bytes: int = 0
    """Size of the payload; depends on its records alone, as every eviction decision does."""
    digest: str = ""
    """Digest of its curated record, for the `log_hash` of its batch."""

    @property
    def is_replay(self) -> bool:
        """Whether this is not the group's first use."""
        return self.use_id.use_number > 0


@dataclass(frozen=True, slots=True)
class WindowEviction(Generic[T_co]):
    """A group that leaves the window untrained, and why."""

    entry: Waiting[T_co]
    verdict: EvictionVerdict


_Ranked: TypeAlias = Callable[[Waiting[object]], Rank]


class _Share(Generic[T]):
    """The fresh groups of a window, or its replays."""

    def __init__(self) -> None:
        self.inside: set[UseId] = set()
        self.size_bytes = 0
        """Sum of the payload sizes of these groups."""
        self.by_departure: list[tuple[Rank, UseId, Waiting[T]]] = []
        """Heap with the group that leaves first on top; some entries are stale."""

    def add(self, entry: Waiting[T], leaves_by: Rank) -> None:
        """Add a group; the group with the least rank leaves first."""
        self.inside.add(entry.use_id)
        self.size_bytes += entry.size_bytes
        heapq.heappush(self.by_departure, (leaves_by, entry.use_id, entry))
        if len(self.by_departure) > 2 * len(self.inside) + STALE_SLACK:
            self.by_departure = [one for one in self.by_departure if one[1] in self.inside]
            heapq.heapify(self.by_departure)

    def forget(self, entry: Waiting[T]) -> None:
        """Remove a group."""
        self.inside.remove(entry.use_id)
        self.size_bytes -= entry.size_bytes

    def pop_first_to_leave(self) -> Waiting[T]:
        """Remove and return the group that leaves first."""
        while self.by_departure[0][1] not in self.inside:
            heapq.heappop(self.by_departure)
        gone = heapq.heappop(self.by_departure)[2]
        self.forget(gone)
        return gone


class Window(Generic[T]):
    """At most `capacity` fresh groups and `capacity` replays in one order; expired groups are never served.

    The content does not depend on the order of arrival, so a later trainer that reads the same groups has the same
    window.

    Args:
        capacity: Groups of each kind, at least 1.
        order: `edf`, earliest deadline first; `fifo`, first arrival first; `lifo`, last arrival first; `random`.
        Beyond the capacity one group leaves, possibly the new one: with `edf` the most stale, with `fifo` and
        `lifo` the first arrival, with `random` the last in order.
        seed: Seed of the order `random`, in which a group's place depends on its identity, not on its arrival.
        most_bytes: Most bytes of each kind; beyond it groups leave by the same rule.
        least: Groups of each kind that may stay whatever their size, so that a batch can be cut.

    The two kinds have separate room. Replays are usually the most stale, so in a shared window full of fresh groups no
    replay would stay. Every entry has its own deadline, so fresh groups and replays with another staleness bound share
    one order.
    """

    def __init__(
        self,
        capacity: int,
        order: ServingOrder = "edf",
        seed: int = 1,
        *,
        most_bytes: int = MOST_WINDOW_BYTES,
        least: int = 1,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"the capacity of a window must be at least 1 group, got {capacity}")
        self._capacity, self._most_bytes, self._least = capacity, most_bytes, least
        self._rank, self._leaves = _find_rules(order, seed)
        self._entries: list[Waiting[T]] = []
        self._fresh, self._replays = _Share[T](), _Share[T]()
        self._earliest: float = math.inf
        """No entry has an earlier deadline."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: UseId) -> bool:
        return key in self._share_of(key).inside

    def add(self, entry: Waiting[T]) -> list[WindowEviction[T]]:
        """Add a group whose use is not waiting yet; return the groups that leave as `surplus` for lack of room."""
        bisect.insort(self._entries, entry, key=self._rank)
        self._earliest = min(self._earliest, entry.deadline_version)
        room = self._share_of(entry.use_id)
        room.add(entry, _negate_rank(self._leaves(entry)))
        evicted: list[WindowEviction[T]] = []
        while len(room.inside) > self._capacity or (
            room.size_bytes > self._most_bytes and len(room.inside) > self._least
        ):
            gone = room.pop_first_to_leave()
            del self._entries[bisect.bisect_left(self._entries, self._rank(gone), key=self._rank)]
            evicted.append(WindowEviction(gone, "surplus"))
        return evicted

    def expire(self, current_version: int) -> list[WindowEviction[T]]:
        """Evict the groups that the trainer, now at `current_version`, may no longer train on.

        These have current_version > deadline_version, which is current_version - min_version > max_staleness.
        """
        if current_version <= self._earliest:
            return []
        expired = [entry for entry in self._entries if entry.deadline_version < current_version]
        self._entries = [entry for entry in self._entries if entry.deadline_version >= current_version]
        self._forget(expired)
        self._earliest = min((entry.deadline_version for entry in self._entries), default=math.inf)
        return [WindowEviction(entry, "expired") for entry in expired]

    def pop(self, n: int) -> list[Waiting[T]] | None:
        """Remove and return the next n groups in order; return None and remove nothing if fewer wait."""
        if len(self._entries) < n:
            return None
        taken, self._entries = self._entries[:n], self._entries[n:]
        self._forget(taken)
        return taken

    def _forget(self, gone: Iterable[Waiting[T]]) -> None:
        for entry in gone:
            self._share_of(entry.use_id).forget(entry)

    def _share_of(self, use_id: UseId) -> _Share[T]:
        return self._replays if use_id.use_number > 0 else self._fresh

    def list_waiting(self) -> tuple[Waiting[T], ...]:
        """Return the waiting groups in serving order, without removing them."""
        return tuple(self._entries)


def count_next_batch(waiting: int, full: int, unit: int, waited_s: float, limit_s: float) -> int:
    """Return how many groups the next batch takes; 0 while the batch has to wait.

    Args:
        waiting: Groups in the window.
        full: Groups of a whole batch.
        unit: After the limit a smaller batch is cut: a multiple of this; the other groups stay in the window.
        waited_s: Seconds for which the learner has been free.
        limit_s: Most seconds to wait for a whole batch; 0 for no limit.
    """
    if waiting >= full:
        return full
    return waiting // unit * unit if 0 < limit_s <= waited_s else 0


def _negate_rank(rank: Rank) -> Rank:
    return -rank[0], -rank[1]


def _find_rules(order: ServingOrder, seed: int) -> tuple[_Ranked, _Ranked]:
    """Return the rank by which a window is sorted, and the rank whose largest value leaves first."""

    def lot(entry: Waiting[object]) -> Rank:
        stream, number, use = entry.use_id
        drawn = blake2b(f"{seed} {stream} {number} {use}".encode(), digest_size=8).digest()
        return int.from_bytes(drawn, "big"), entry.arrival

    rules: Mapping[ServingOrder, tuple[_Ranked, _Ranked]] = {
        "edf": (_deadline, _age),
        "fifo": (_arrival, _lateness),
        "lifo": (_lateness, _lateness),
        "random": (lot, lot),
    }
    return rules[order]


def _deadline(entry: Waiting[object]) -> Rank:
    return entry.deadline_version, entry.arrival


def _age(entry: Waiting[object]) -> Rank:
    return -entry.min_version, -entry.arrival


def _arrival(entry: Waiting[object]) -> Rank:
    return 0, entry.arrival


def _lateness(entry: Waiting[object]) -> Rank:
    return 0, -entry.arrival
