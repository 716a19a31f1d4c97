"""The interface of data algorithms.

A data algorithm is a plain object in a chain: it gets one group at a time with a logical clock, and returns a verdict.
It does no I/O and reads no wall clock, so a live topic, a replayed topic and an archive give the same results. One
object serves one (topic, partition); all of its state is in its snapshot.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headrace.schemas import group_lengths
from headrace.schemas.records import GroupUse, TrajectoryGroup
from headrace.schemas.versions import find_version_range

LARGEST_NUMBER = 1 << 62
"""Largest version or limit in a result: the sum of two still fits a whole number of a record."""


class Rejection(NamedTuple):
    """One trajectory that will not be trained on, and why; it still has its own outcome record.

    It is a tuple because a chain makes several per group, and a frozen dataclass takes three times as long to make.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody uses
    """Position in the group's trajectories."""
    reason: str
    """The rule in one or two words, the same for all its cases."""
    detail: str = ""
    """The case in one line."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A group on its way through the chain."""

    group: TrajectoryGroup
    rewards: tuple[float, ...]
    """Current rewards of all members, perhaps shaped; the group has the unshaped rewards. NaN: not counted in the
    group's statistics. Rewards of failed episodes follow, if these count (`failures`)."""
    kept: tuple[int, ...]
    """Indices of the trajectories still to be trained on."""
    min_version: int
    """Oldest version that generated a token of a kept trajectory; -1 when none was generated."""
    max_version: int
    """Newest version that generated a token of a kept trajectory; -1 when none was generated."""
    rejected: tuple[Rejection, ...] = ()
    """Trajectories removed from `kept`, in order of removal."""
    flagged: tuple[Rejection, ...] = ()
    """Trajectories that a monitoring algorithm would have rejected."""

    @classmethod
    def of(cls, group: TrajectoryGroup) -> Candidate:
        """Return a group as it enters the chain: all trajectories kept, rewards unshaped."""
        rewards = tuple(trajectory.reward for trajectory in group.trajectories)
        return cls(group, rewards, tuple(range(len(rewards))), *find_version_range(group.trajectories))

    def without(self, rejections: Iterable[Rejection], *, counted: bool = True) -> Candidate:
        """Return the candidate without some trajectories; its versions are those of the remaining ones.

        The removed trajectories are not trained on; their rewards stay in the group's statistics if `counted`, else
        become NaN.
        """
        new = tuple(rejections)
        gone = {rejection.index for rejection in new}
        kept = tuple([index for index in self.kept if index not in gone])
        rewards = self.rewards
        if not counted:
            rewards = tuple([math.nan if index in gone else reward for index, reward in enumerate(rewards)])
        low, high = find_version_range([self.group.trajectories[index] for index in kept])
        return Candidate(self.group, rewards, kept, low, high, self.rejected + new, self.flagged)

    def with_shaped_rewards(self, rewards: Iterable[float]) -> Candidate:
        """Return the candidate with other rewards of its members; rewards of failed episodes stay unchanged.

        Any numbers are accepted. Raises ValueError unless there is one for each member.
        """
        shaped, count = tuple(rewards), len(self.group.trajectories)
        if len(shaped) != count:
            raise ValueError(
                f"there must be one reward for each of the {count} trajectories, kept or not; got {len(shaped)}"
            )
        return self.with_rewards((*shaped, *self.rewards[count:]))

    def with_rewards(self, rewards: Iterable[float]) -> Candidate:
        """Return the candidate with other rewards: of its members, then of failed episodes that count."""
        low, high = self.min_version, self.max_version
        return Candidate(self.group, tuple(map(float, rewards)), self.kept, low, high, self.rejected, self.flagged)


@dataclass(frozen=True, slots=True)
class Keep:
    """Pass the group on; `kept` may be smaller, and rewards may be shaped."""

    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop the group."""

    reason: str
    """The rule in one or two words, by which drops are counted."""
    detail: str = ""
    """The case in one line."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Train once more on an earlier group of this partition, besides the verdict on the current group.

    A replay names the group but does not repeat it. The curated record of its use 0 comes earlier on the same partition
    of `curated`, from the same chain, and holds its bytes, `kept` and shaped `rewards` for every use. The fields here
    differ by use.
    """

    use: GroupUse
    """The group, and the number of this use, from 1 on."""
    deadline_version: int = 0
    """Last version that may train on this use: min_version + the replay's own staleness bound."""
    min_version: int = -1
    """Oldest version among its kept tokens, as in the record of use 0."""
    max_version: int = -1
    """Newest version among its kept tokens."""
    weight: float = 1.0
    """Importance weight of this use, above 0 and at most 1: multiplies its advantages. 1 unless groups are drawn by
    priority; use 0 always has 1."""


Result = Keep | Drop | Replay


class Algorithm(Protocol):
    """One step of a chain. Built as `Name(**settings)`; a bad setting raises ValueError with a helpful message.

    An algorithm that returns Replays also has a method `holds() -> Iterable[(stream, number)]`: the groups that it may
    still replay. The curator forgets all other groups, and refuses to replay them.
    """

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:
        """Return exactly one Keep or Drop for the candidate, and any number of Replays.

        `clock` is the highest head_version seen on the partition so far, this group's included.
        """

    def snapshot(self) -> dict[str, Any]:
        """Return the state that `restore` needs, as plain JSON."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a snapshot."""


class Stateless:
    """Base of algorithms without state."""

    def snapshot(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""


generated_lengths = group_lengths.count_generated
