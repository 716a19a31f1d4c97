"""Finds numbers to issue again: those that neither the workers nor the curators have. No I/O.

A number is *passed* when the workers have committed past its task and no outcome has come. Its group may still wait
for a curator that is down or slow. So the number counts as lost only when the curators have read everything that
`trajectories` held at that moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headrace.schemas.ids import GroupId

MOST_ATTEMPTS = 6
"""Most attempts of a number, including the first. If the last attempt stays unanswered, the number is dead."""
SLOWEST = 32
"""The wait doubles each time a number is lost again, up to this multiple of the first wait."""


class Passed(NamedTuple):
    """A number whose task the workers committed past, without an outcome for some policies."""

    group: GroupId
    attempt: int
    policies: tuple[str, ...]


class NumbersSource(NamedTuple):
    """A partition of a policy's `trajectories`, where the groups of some numbers are."""

    policy: str
    partition: int


@dataclass(slots=True)
class _Wait:
    ends: dict[NumbersSource, int]
    """Ends of `trajectories` when the number was first seen as passed."""
    since_s: float | None = None
    """When the curators were first seen past these ends; None before."""


class OverdueNumbers:
    """Finds numbers that have been passed for too long. The caller gives the time; waits start anew after a restart.

    Args:
        after_s: Seconds to wait for a number after the curators have read past its possible groups.
        partitions: Partitions of every policy's `trajectories`; a group's partition is its number modulo this.
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
            curated: The curators' positions; a missing partition counts as 0.
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
