"""Compares replays in curated records with the first use of the group and the chain's limits. No I/O."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from headrace.infra.recipe.settings import Recipe
from headrace.ops.audit.deep import UnfitValue
from headrace.ops.audit.kept_choice import load_known_chain
from headrace.ops.audit.pages import LOW, PAGE_BITS, PAGE_NUMBERS
from headrace.schemas.records import CuratedGroup


class ReplayLimits(NamedTuple):
    """The limits of a chain: uses of a group, including the first, and the age of a replay."""

    max_uses: int
    max_staleness: int


class ReplayChecks:
    """Takes in the curated records of one policy or shadow, one partition after the other.

    Eight bytes are kept for every number if a chain has replays.

    Args:
        variant: Policy or shadow.
        revisions: All recipes of the run, by revision.
    """

    def __init__(self, variant: str, revisions: Sequence[Recipe]) -> None:
        self._limits = [_find_limits(one, variant) for one in revisions]
        self._has_replays = any(limits is None or limits.max_uses > 1 for limits in self._limits)
        self._counts = Counter[int]()
        """Partition to the number of records that its curator has written so far."""
        self._firsts: dict[tuple[str, int, int], tuple[array[int], array[int]]] = {}
        """(stream, partition, page) to how many records a first use had before it, -1 for none, and its min_version."""

    def fold_group(self, curated: CuratedGroup, partition: int, *, sent_back: bool) -> None:
        """Take in a record. Raises UnfitValue for a record that its chain cannot have written."""
        if sent_back:  # it replaces a record that was counted at its old position
            return
        count = self._counts[partition]
        self._counts[partition] = count + 1
        if curated.use:
            self._check_replay(curated, partition, count)
            return
        if self._has_replays:
            counts, oldest = self._find_page(curated, partition)
            counts[curated.number & LOW], oldest[curated.number & LOW] = count, curated.min_version
        if curated.weight != 1 or curated.first_back:
            raise UnfitValue(
                "it is a first use, so its weight must be 1 and its first_back 0, but they are "
                f"{curated.weight} and {curated.first_back}"
            )

    def _find_page(self, curated: CuratedGroup, partition: int) -> tuple[array[int], array[int]]:
        key = (curated.stream, partition, curated.number >> PAGE_BITS)
        if key not in self._firsts:
            self._firsts[key] = (array("i", [-1]) * PAGE_NUMBERS, array("i", [-1]) * PAGE_NUMBERS)
        return self._firsts[key]

    def _check_replay(self, curated: CuratedGroup, partition: int, count: int) -> None:
        if not 0 < curated.weight <= 1:
            raise UnfitValue(f"the weight of a replay must be above 0 and at most 1; it is {curated.weight}")
        if curated.group or curated.kept or curated.rewards:
            raise UnfitValue("it is a replay, so `group`, `rewards` and `kept` must be empty: its first use holds them")
        self._check_limits(curated)
        counts, oldest = self._find_page(curated, partition)
        first, min_version = counts[curated.number & LOW], oldest[curated.number & LOW]
        if first < 0:
            raise UnfitValue("it is a replay, but no record before it on this partition is the first use of its group")
        if curated.min_version != min_version:
            raise UnfitValue(f"its oldest version is {curated.min_version}, but that of its first use is {min_version}")
        if curated.first_back not in (0, count - first):
            raise UnfitValue(
                f"its first_back is {curated.first_back}, but its first use is {count - first} curated records "
                "before it"
            )

    def _check_limits(self, curated: CuratedGroup) -> None:
        known = 0 <= curated.revision < len(self._limits)
        limits = self._limits[curated.revision] if known else None
        if limits is None:
            return
        if curated.use >= limits.max_uses:
            raise UnfitValue(
                f"it is use {curated.use}, but in the chain of recipe revision {curated.revision} a group has at most "
                f"{limits.max_uses} uses, the first being use 0"
            )
        if curated.deadline_version != curated.min_version + limits.max_staleness:
            raise UnfitValue(
                f"its deadline is version {curated.deadline_version}, but it must be version "
                f"{curated.min_version + limits.max_staleness}: its oldest token's version ({curated.min_version}) "
                f"plus the max_staleness ({limits.max_staleness}) of the replay algorithm in recipe revision "
                f"{curated.revision}"
            )


def _find_limits(recipe: Recipe, variant: str) -> ReplayLimits | None:
    """Return the limits of a chain; None if they depend on a user's algorithm, or the chain is not known."""
    chain = load_known_chain(recipe, variant)
    found = chain.replay_limits if chain is not None else None
    return ReplayLimits(*found) if found else None
