"""The revisions of a run's recipe: the chain of each, its first task, and how many groups went through it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Recipe
from headrace.ledger.ledger import Ledger
from headrace.schemas import codec
from headrace.schemas.records import RecipeRevision


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


def list_revisions(ledger: Ledger, begins: Mapping[str, Iterable[Sequence[int]]]) -> tuple[RevisionFigures, ...]:
    """Return the figures of every revision, in order.

    Args:
        ledger: The ledger.
        begins: Stream to (revision, the first number issued under it), according to the feeder's snapshot.
    """
    firsts: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for stream, spans in begins.items():
        for revision, first in spans:
            firsts[revision][stream] = first
    newest = max(firsts, default=None)
    counts = dict[int, tuple[int, int]]()
    for revision, groups, kept in ledger.query(
        "SELECT revision, sum(groups), sum(kept) FROM decided WHERE variant NOT LIKE '%.%' GROUP BY revision"
    ):
        counts[revision] = groups, kept
    return tuple(
        RevisionFigures(
            revision=revision,
            chain=chain,
            swapped=swapped,
            groups=counts.get(revision, (0, 0))[0],
            kept=counts.get(revision, (0, 0))[1],
            begins=firsts.get(revision, {}),
            in_force=revision == newest,
        )
        for revision, (chain, swapped) in sorted(_find_chains(ledger).items())
    )


def _find_chains(ledger: Ledger) -> dict[int, tuple[tuple[str, ...], bool]]:
    """Return revision to the words of its chain, and whether a swap made it."""
    found: dict[int, tuple[tuple[str, ...], bool]] = {}
    for revision, value in ledger.query("SELECT revision, value FROM revision ORDER BY id"):
        if revision not in found and (read := _read_chain(value)) is not None:
            found[revision] = read
    return found


@lru_cache(maxsize=256)
def _read_chain(value: bytes) -> tuple[tuple[str, ...], bool] | None:
    """Return what a record of the recipe topic says of the chain; None if it holds no recipe that is known here."""
    record = codec.decode(value, RecipeRevision)
    if not record.recipe:
        return None
    try:
        chain = Recipe.from_json(record.recipe).curate.chain
    except UsageError:
        return None  # another release wrote it, with keys that are not known here
    return tuple(algorithm.describe() for algorithm in chain), record.swapped


@dataclass(frozen=True, slots=True)
class RunSpan:
    """When a run began, and why it is over."""

    began_ms: int
    """Wall time in ms since the epoch; 0 before its first record."""
    ended: str
    """Why it is over; empty while it is running."""


def find_span(ledger: Ledger) -> RunSpan:
    """Return when a run began, and why it is over."""
    began = ledger.query("SELECT created_ms FROM revision WHERE created_ms > 0 ORDER BY id LIMIT 1")
    ended = ""
    for (value,) in ledger.query("SELECT value FROM revision ORDER BY id DESC"):
        record = _read_revision(value)
        if record.recipe or record.ended:  # others hold only schemas
            ended = record.ended
            break
    return RunSpan(began[0][0] if began else 0, ended)


@lru_cache(maxsize=8)
def _read_revision(value: bytes) -> RecipeRevision:
    return codec.decode(value, RecipeRevision)
