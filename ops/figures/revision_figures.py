"""The revisions of a run's recipe: the chain of each, its first task, and how many groups went through it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Recipe
from headrace.schemas.records import Outcome, RecipeRevision


@dataclass(frozen=True, slots=True)
class RevisionFigures:
    """One revision of the recipe."""

    revision: int
    chain: tuple[str, ...]
    """Its data algorithms in order, with their settings."""
    swapped: bool
    """Whether `headrace swap` made it."""
    groups: int
    """Number of groups, of all policies, that curators put through its chain."""
    kept: int
    """Number of groups that its chain kept."""
    begins: dict[str, int] = field(default_factory=dict)
    """Stream to the first number issued under it; empty if there is none, or if the feeder does not record it."""
    in_force: bool = False
    """Whether the feeder issues tasks under it now."""


class RevisionsFold:
    """Takes in the records about revisions."""

    def __init__(self) -> None:
        self._chains: dict[int, tuple[tuple[str, ...], bool]] = {}
        self._groups: Counter[int] = Counter()
        self._kept: Counter[int] = Counter()

    def fold_revision(self, record: RecipeRevision) -> None:
        """Take in a record of the recipe topic."""
        if record.recipe and record.revision not in self._chains:
            try:
                chain = Recipe.from_json(record.recipe).curate.chain
            except UsageError:
                return  # another release wrote it, with keys that are not known here
            self._chains[record.revision] = tuple(algorithm.describe() for algorithm in chain), record.swapped

    def fold_outcome(self, outcome: Outcome) -> None:
        """Take in a curator's outcome of a group's first use."""
        self._groups[outcome.revision] += 1
        self._kept[outcome.revision] += outcome.verdict == "kept"

    def figures(self, begins: Mapping[str, Iterable[Sequence[int]]]) -> tuple[RevisionFigures, ...]:
        """Return the figures of every revision, in order.

        Args:
            begins: Stream to (revision, the first number issued under it), according to the feeder's snapshot.
        """
        firsts: defaultdict[int, dict[str, int]] = defaultdict(dict)
        for stream, spans in begins.items():
            for revision, first in spans:
                firsts[revision][stream] = first
        newest = max(firsts, default=None)
        return tuple(
            RevisionFigures(
                revision=revision,
                chain=chain,
                swapped=swapped,
                groups=self._groups[revision],
                kept=self._kept[revision],
                begins=firsts.get(revision, {}),
                in_force=revision == newest,
            )
            for revision, (chain, swapped) in sorted(self._chains.items())
        )
