"""The groups between a curator and its trainer, from the headers and offsets of curated records. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from headrace.infra.inflection import inflect
from headrace.ops.audit.bounds import Bounds
from headrace.ops.audit.numbers import PolicyNumbers
from headrace.ops.audit.pages import (
    EARLY,
    EVICTED,
    IN_WINDOW,
    LATE,
    LOW,
    NEVER_TRAINED,
    OVERDUE,
    PASSED,
    TRAINED,
)
from headrace.ops.audit.weights_chain import WeightsChain
from headrace.schemas.topics import variant_of


class GroupStamp(NamedTuple):
    """The facts in the headers of a group's record."""

    stream: str
    number: int
    use: int
    revision: int
    min_version: int
    max_version: int
    head_version: int = -1


class Flight:
    """The curated groups of one policy or shadow that are in flight. Batches are taken in before curated records.

    Args:
        policy_variant: Policy or shadow.
        numbers: Its numbers; results are written there.
        chain: Its versions, with the trainer's positions.
        bounds: How much may be in flight.
    """

    def __init__(self, policy_variant: str, numbers: PolicyNumbers, chain: WeightsChain, bounds: Bounds) -> None:
        self._policy_variant, self._numbers, self._chain, self._bounds = policy_variant, numbers, chain, bounds
        self._ends: dict[int, int] = {}
        """Partition to the offset after its last first use."""

    def fold_curated(
        self, curated: GroupStamp, partition: int, offset: int, *, sent_back: bool, is_dead: bool = False
    ) -> None:
        """Take in a curated record and its position.

        Args:
            curated: Its headers.
            partition: Its partition.
            offset: Its offset.
            sent_back: Whether `headrace redrive` wrote it.
            is_dead: Whether this very record has a dead letter; a copy of it that was sent back may wait.
        """
        identity, bits = (curated.stream, curated.number, curated.use), 0
        if curated.use:
            bits |= PASSED if offset < self._chain.positions.last.get(partition, 0) else 0
        else:
            self._ends[partition] = offset + 1
            bits |= IN_WINDOW if offset < self._chain.positions.settled.get(partition, 0) else 0
        deadline = self.deadline(curated.revision, curated.min_version)
        if (
            curated.use == 0 and deadline is not None and not variant_of(self._policy_variant)
        ):  # a shadow has another clock
            version = self._numbers.pages.version(*identity)
            if version != NEVER_TRAINED:
                bits |= LATE if version - 1 > deadline else 0
                bits |= EARLY if curated.max_version >= version else 0
            elif offset < self._chain.positions.aged.get(partition, 0) and deadline < self._chain.newest - 1:
                bits |= OVERDUE
        self._numbers.mark_curated(*identity, bits, sent_back=sent_back)
        if not is_dead and not self._numbers.pages.bits_of(*identity)[curated.number & LOW] & (TRAINED | EVICTED):
            self._chain.resume.note_waiting(partition, offset)

    def deadline(self, revision: int, min_version: int) -> int | None:
        """Return the last version at which a first use may be trained on; None if no recipe gives it."""
        return self._bounds.deadline(self._policy_variant, revision, min_version)

    def find_overflow(self, issued: dict[str, int]) -> list[tuple[int, str]]:
        """Return how many more are in flight than possible, with a sentence. They are lost; which ones is not known.

        Args:
            issued: Next number of every stream of this policy, read before anything else.
        """
        found, numbers, most, policy_variant = [], self._numbers, self._bounds, self._policy_variant
        waiting, room = numbers.count_waiting(), most.waiting[policy_variant]
        if waiting > room:
            lost = f"{waiting - room} {inflect(waiting - room, 'group is', 'groups are')} lost"
            what = (
                f"{waiting} groups of {policy_variant} were read by its trainer and neither trained nor evicted, but "
                f"the trainer's window and unfinished batches hold at most {room} groups: {lost}"
            )
            found.append((waiting - room, what))
        room = most.open.get(policy_variant, 0) + numbers.reopened + numbers.count_played_though_dead()
        flying = numbers.count_open_below(issued) if policy_variant in most.open else 0
        if flying > room:
            what = (
                f"{flying} tasks of {policy_variant} are in flight, but the feeder allows at most {room} open tasks: "
                f"{flying - room} {inflect(flying - room, 'is', 'are')} lost"
            )
            found.append((flying - room, what))
        return found

    def has_reported_all_groups(self) -> bool:
        """Return whether, at the end of a run, no kept group waits for the trainer any more.

        This is true if every kept first use is trained on or evicted. It is also true if the trainer has read the whole
        curated topic and, after the end of the run, has written what happened to all groups that it held.
        """
        return self._chain.positions.has_reported_all_groups(self._ends) or not self._numbers.count_kept_and_open()
