"""The revisions of a run's recipe: which chain each has, and how many groups went through it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from infra.errors import UsageError
from infra.settings import Recipe
from schemas.records import Outcome, RecipeRevision


@dataclass(frozen=True, slots=True)
class RevisionFigures:
    """One revision of the recipe."""

    revision: int
    chain: tuple[str, ...]
    """Its data algorithms in order, with their settings."""
    swapped: bool
    """Whether `headrace swap` made it."""
    groups: int
    """Groups, of all policies, that curators put through its chain."""
    kept: int
    """Of these, kept."""


class RevisionsFold:
    """What was taken in so far."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[tuple[str, ...], bool]] = {}
        self._groups: Counter[int] = Counter()
        self._kept: Counter[int] = Counter()

    def revision(self, record: RecipeRevision) -> None:
        """Take in a record of the recipe topic."""
        if record.recipe and record.revision not in self._told:
            try:
                chain = Recipe.from_json(record.recipe).curate.chain
            except UsageError:
                return  # a build that knows other keys wrote it
            self._told[record.revision] = tuple(use.in_words() for use in chain), record.swapped

    def outcome(self, outcome: Outcome) -> None:
        """Take in what a curator said of a group's first use."""
        self._groups[outcome.revision] += 1
        self._kept[outcome.revision] += outcome.verdict == "kept"

    def figures(self) -> tuple[RevisionFigures, ...]:
        """Return one for each revision, in order."""
        return tuple(
            RevisionFigures(revision, chain, swapped, self._groups[revision], self._kept[revision])
            for revision, (chain, swapped) in sorted(self._told.items())
        )
