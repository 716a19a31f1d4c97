"""Which numbers are to be issued again: those that are neither at the workers nor at the curators. Pure state.

A number is *passed* once the workers committed past its task and no outcome of it was heard. Its group may still wait
in front of a curator that is down or slow, so it counts as lost only when the curators have read all that
`trajectories` held at that moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headrace.schemas.ids import GroupId

MOST_ATTEMPTS = 6
"""Attempts of a number, the first among them. The last one that stays without an answer is its end."""
SLOWEST = 32
"""A number that is lost again waits twice as long each time, up to so many times the first wait."""


class Passed(NamedTuple):
    """A number that the workers are done with and that some policies' curators have not answered for."""

    group: GroupId
    attempt: int
    policies: tuple[str, ...]


class NumbersSource(NamedTuple):
    """Where a policy's groups of some numbers are: a partition of its `trajectories`."""

    policy: str
    partition: int


@dataclass(slots=True)
class _Wait:
    ends: dict[NumbersSource, int]
    """Ends of `trajectories` when the number was first seen as passed."""
    since_s: float | None = None
    """When the curators were first seen past that; None before."""


class OverdueNumbers:
    """Which numbers have been passed for too long; its clock is the caller's, and starts anew after a restart.

    Args:
        after_s: How long a number is waited for once the curators have read what there was of it.
        partitions: Of every policy's `trajectories`: a number's group is on partition number modulo that.
    """

    def __init__(self, after_s: float, partitions: int) -> None:
        self.after_s = after_s
        self.partitions = partitions
        self._waits: dict[tuple[GroupId, int], _Wait] = {}

    def find_sources(self, passed: Iterable[Passed]) -> set[NumbersSource]:
        """Return the partitions on which groups of these numbers may be."""
        return {source for one in passed for source in self._sources_of(one)}

    def find_due(
        self,
        passed: Iterable[Passed],
        ends: Mapping[NumbersSource, int],
        curated: Mapping[NumbersSource, int],
        now_s: float,
    ) -> list[GroupId]:
        """Return the numbers that were in `passed` at every call for long enough.

        Args:
            passed: All that are passed now.
            ends: Where `trajectories` end now.
            curated: How far the curators are; what is missing is not begun.
            now_s: The time.
        """
        before, self._waits = self._waits, {}
        found = []
        for one in passed:
            key = one.group, one.attempt
            wait = before.get(key) or _Wait({source: ends[source] for source in self._sources_of(one)})
            self._waits[key] = wait
            if wait.since_s is None and all(curated.get(source, 0) >= end for source, end in wait.ends.items()):
                wait.since_s = now_s
            if wait.since_s is not None and now_s - wait.since_s >= self.after_s * min(2**one.attempt, SLOWEST):
                found.append(one.group)
        return found

    def _sources_of(self, one: Passed) -> list[NumbersSource]:
        return [NumbersSource(policy, one.group.number % self.partitions) for policy in one.policies]
