"""What a data algorithm is.

A plain object in a chain: it sees one group at a time with a logical clock, and returns what becomes of it. It does no
I/O and reads no wall clock, so a live topic, a replayed one and an archive give the same result. One object serves one
(topic, partition); all of its state is in its snapshot.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headrace.infra.deprecated_names import deprecated_names
from headrace.schemas import group_lengths
from headrace.schemas.records import GroupUse, TrajectoryGroup
from headrace.schemas.versions import find_version_range


class Rejection(NamedTuple):
    """One trajectory that will not be trained on, and why; it still has its own outcome record.

    A tuple, as a chain makes several for each group, and a frozen dataclass takes three times as long to make.
    """

    index: int  # type: ignore[assignment]  # instead of tuple.index, which nobody asks for
    """Position in the group's trajectories."""
    reason: str
    """One word or two, the same for every case of one rule."""
    detail: str = ""
    """The case in one line."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A group on its way through the chain."""

    group: TrajectoryGroup
    rewards: tuple[float, ...]
    """Rewards of all members, shaped so far; the unshaped ones are in the group. NaN: not counted in the group's
    statistics. After the members come those of failed episodes, where these count (`failures`)."""
    kept: tuple[int, ...]
    """Indices of the trajectories still to be trained on."""
    min_version: int
    """Oldest version that generated a token of a kept trajectory; -1 when none was generated."""
    max_version: int
    """Newest such version; -1 when none was generated."""
    rejected: tuple[Rejection, ...] = ()
    """What left `kept`, in the order in which it left."""
    flagged: tuple[Rejection, ...] = ()
    """What an algorithm that only watches would have rejected."""

    @classmethod
    def of(cls, group: TrajectoryGroup) -> Candidate:
        """Return a group as it enters the chain: everything kept, nothing shaped."""
        rewards = tuple(trajectory.reward for trajectory in group.trajectories)
        return cls(group, rewards, tuple(range(len(rewards))), *find_version_range(group.trajectories))

    def without(self, rejections: Iterable[Rejection], *, counted: bool = True) -> Candidate:
        """Return the candidate less some trajectories, its versions taken anew over the others.

        These are not trained on; their rewards stay in the group's statistics if `counted`, else they become NaN.
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
        """Return the candidate with other rewards of its members; those of failed episodes stay as they are.

        Any numbers will do. Raises ValueError unless there is one for each member.
        """
        shaped, count = tuple(rewards), len(self.group.trajectories)
        if len(shaped) != count:
            raise ValueError(
                f"there must be one reward for each of the {count} trajectories, kept or not; got {len(shaped)}"
            )
        return self.with_rewards((*shaped, *self.rewards[count:]))

    def shaped(self, rewards: Iterable[float]) -> Candidate:
        """Return `with_shaped_rewards`, by its old name, with a DeprecationWarning."""
        warnings.warn(
            "Candidate.shaped is deprecated: use Candidate.with_shaped_rewards", DeprecationWarning, stacklevel=2
        )
        return self.with_shaped_rewards(rewards)

    def with_rewards(self, rewards: Iterable[float]) -> Candidate:
        """Return the candidate with other rewards, of its members and then of failed episodes that count."""
        low, high = self.min_version, self.max_version
        return Candidate(self.group, tuple(map(float, rewards)), self.kept, low, high, self.rejected, self.flagged)


@dataclass(frozen=True, slots=True)
class Keep:
    """The group goes on; its `kept` may have shrunk and its rewards may have been shaped."""

    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Drop:
    """The group ends here."""

    reason: str
    """The rule, in one word or two: what drops are counted by."""
    detail: str = ""
    """The case in one line."""


@dataclass(frozen=True, slots=True)
class Replay:
    """An earlier group of this partition is trained on once more, beside the verdict on the present one.

    It is named, not repeated. The curated record of its use 0 comes before this one on the same partition of
    `curated`, from the same chain, and holds its bytes, `kept` and shaped `rewards`; these serve every use, so that a
    reader takes them from there. What differs by use is here.
    """

    use: GroupUse
    """Its identity, and which use this is, from 1 on."""
    deadline_version: int = 0
    """Last version that may still be trained on this use: min_version + the replay's own staleness bound."""
    min_version: int = -1
    """Oldest version among its kept tokens, as in the record of use 0."""
    max_version: int = -1
    """Newest such version."""
    weight: float = 1.0
    """Importance weight of this use, above 0 and at most 1: multiplies its advantages. 1 unless groups are drawn by
    priority; use 0 always has 1."""


Result = Keep | Drop | Replay

__getattr__ = deprecated_names(__name__, {"Again": Replay})


class Algorithm(Protocol):
    """One step of a chain. Built as `Name(**settings)`; a bad setting raises ValueError with a sentence.

    One that returns Replays has a method more, `holds() -> Iterable[(stream, number)]`: the groups that it may still
    replay. The curator forgets the others, and refuses to replay them.
    """

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:
        """Return exactly one Keep or Drop for the candidate, and any number of Replays.

        `clock` is the highest head_version seen on the partition so far, this group's included.
        """

    def snapshot(self) -> dict[str, Any]:
        """Return all that `restore` needs, as plain JSON."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a snapshot."""


class Stateless:
    """Base of algorithms without state."""

    def snapshot(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Forget nothing."""


generated_lengths = group_lengths.count_generated
