"""Finds what is wrong with task numbers: sentences, each with the numbers of a page for which it is true. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from headrace.ops.audit.pages import (
    ANSWER_DUE,
    BY_TRAINER,
    CURATED,
    CURATED_TWICE,
    DISCARDED,
    EARLY,
    EVICTED,
    EVICTED_TWICE,
    KEPT,
    KEPT_TWICE,
    LATE,
    MISPLACED,
    NO_REASON,
    ODD_FACTS,
    ODD_VERDICT,
    OVERDUE,
    PASSED,
    PRODUCED,
    REACHED,
    REOPENED,
    TRAINED,
    TWICE,
    UNMATCHED,
    Mask,
    Page,
)


@dataclass(frozen=True, slots=True)
class Scope:
    """The state of a run that decides which problems are checked."""

    drained: bool = False
    """Nothing more can conclude: groups in flight are lost."""
    still: bool = False
    """No process is writing now, so all topics show the same moment."""
    whole: bool = False
    """Trajectories and curated groups were read too."""
    offline: bool = False
    """An offline experiment: its groups are those of another run, and it has only batches."""


def find_broken(page: Page, before: Page | None, issued: int, scope: Scope) -> Iterator[tuple[str, Mask]]:
    """Yield what may be wrong, with the numbers of a page for which it is true; `{reason}` is that of a discard.

    Args:
        page: The numbers, in one use.
        before: The same numbers in the use before; None for first uses.
        issued: Next number of the stream.
        scope: What may be expected.
    """
    trained, discarded = page.mask(TRAINED), page.mask(DISCARDED)
    yield "was trained more than once", page.mask(TWICE) & trained & ~discarded
    if scope.offline:
        return
    yield from chain(_find_broken_conclusions(page, issued, scope), _find_broken_versions(page))
    if scope.whole:
        yield from _find_broken_groups(page, issued, scope)
    if before is not None:
        yield from _find_broken_replays(page, before, scope)


def _find_broken_conclusions(page: Page, issued: int, scope: Scope) -> Iterator[tuple[str, Mask]]:
    trained, discarded, evicted = page.mask(TRAINED), page.mask(DISCARDED), page.mask(EVICTED)
    yield "was both trained and discarded ({reason})", trained & discarded
    yield "was discarded more than once ({reason})", page.mask(TWICE) & discarded & ~trained
    yield "was kept more than once", page.mask(KEPT_TWICE)
    yield "is a dead letter, but was also trained or discarded", page.died & (trained | discarded)
    yield "was discarded without a reason", page.mask(NO_REASON)
    yield "was evicted by the trainer more than once", page.mask(EVICTED_TWICE)
    yield "was evicted by the trainer for another reason than its outcome gives ({reason})", page.mask(ODD_VERDICT)
    yield "was concluded, but never issued", page.concluded & ~page.is_below(issued)
    yield "was trained, but no outcome says that it was kept", trained & ~page.mask(KEPT)
    yield "was evicted by the trainer, but no outcome says so", evicted & ~discarded & ~page.died
    if scope.still:
        by_trainer = page.mask(BY_TRAINER)
        yield "was discarded by the trainer ({reason}), but no batch record says so", by_trainer & ~evicted


def _find_broken_versions(page: Page) -> Iterator[tuple[str, Mask]]:
    yield "was trained after its deadline", page.mask(LATE)
    early = "was trained into a version that is not newer than the version that sampled its newest token"
    yield early, page.mask(EARLY)
    vanished = page.mask(OVERDUE) & ~page.concluded & ~page.mask(EVICTED)
    yield "was read by the trainer and is past its deadline, but was neither trained nor evicted", vanished


def _find_broken_groups(page: Page, issued: int, scope: Scope) -> Iterator[tuple[str, Mask]]:
    curated, produced, kept = page.mask(CURATED), page.mask(PRODUCED), page.mask(KEPT)
    foreign = produced & page.mask(REACHED) & ~page.is_below(issued) & ~page.concluded
    yield "was produced, but never issued", foreign
    due = page.mask(ANSWER_DUE) & ~page.mask(REOPENED) & page.is_below(issued)
    silent = due & ~page.mask(KEPT | DISCARDED | CURATED) & ~page.died
    yield "was read by the curators, but has no outcome and no dead letter", silent & (not scope.drained)
    yield "has a curated record, but no outcome says that it was kept", curated & due & ~kept & (not scope.still)
    odd = "has an outcome that does not match any group that workers produced: rewards, lengths, counts or task differ"
    yield odd, page.mask(ODD_FACTS)
    yield "has its curated record at another offset than its batch record gives", page.mask(MISPLACED)
    yield "has more than one curated record", page.mask(CURATED_TWICE)
    yield "was kept, but has no curated record", kept & ~curated
    if not page.use:
        yield "was curated, but no worker produced it", (kept | page.mask(DISCARDED)) & ~produced
        yield "has a curated record with a group that no worker produced", page.mask(UNMATCHED)
    if scope.still:
        yield "has a curated record, but no outcome says that it was kept", curated & ~kept


def _find_broken_replays(page: Page, before: Page, scope: Scope) -> Iterator[tuple[str, Mask]]:
    asked = page.mask(KEPT)
    yield "is a replay, but the same group's use before this replay was never kept", asked & ~before.mask(KEPT)
    if scope.drained:
        vanished = asked & page.mask(PASSED) & ~page.concluded
        yield "was read by the trainer, but neither trained nor evicted", vanished


def describe_open(bits: int) -> str:
    """Return what is wrong with a number that is still open when nothing more can conclude."""
    if bits & KEPT:
        return "was kept, but neither trained nor evicted"
    if bits & PRODUCED:
        return "was produced, but has no outcome and no dead letter"
    return "was issued, but never concluded"
