"""Which failed episodes failed alike, and what is said of them: for workers, curators, and who shows a run."""

from __future__ import annotations

import re
from collections.abc import Collection

from headrace.schemas.records import EpisodeError, Failure

MOST_KINDS_OF_TASK = 4
LONGEST = 300
"""Characters of a text in an outcome: what a worker wrote may be of any length."""
RAISED = ("error", "time_limit")
"""Reasons of a failure for which the environment, the workflow or the engine is to blame."""
REPORTED = (*RAISED, "unreachable", "poison")
"""Reasons that are reported; the others belong to a run's end, or to an evaluation that came too late."""


def kind_of(failure: Failure | EpisodeError) -> tuple[str, str, str]:
    """Return what failures have in common that count as one error: reason, type, and location.

    Messages of errors that one line raises differ by what was asked. Without a location the message counts. Numbers
    count in neither.
    """
    words = failure.detail.partition(":")[0] if failure.at else failure.detail
    return failure.reason, re.sub("[0-9]+", "", words), failure.at


def group_errors(failures: Collection[Failure]) -> tuple[EpisodeError, ...]:
    """Return how a group's episodes failed, as its outcome carries it."""
    first: dict[tuple[str, str, str], Failure] = {}
    counts: dict[tuple[str, str, str], int] = {}
    traced = {kind_of(failure) for failure in failures if failure.traceback}
    for failure in failures:
        if failure.reason in REPORTED:
            kind = kind_of(failure)
            first.setdefault(kind, failure)
            counts[kind] = counts.get(kind, 0) + 1
    kinds = sorted(first, key=lambda kind: -counts[kind])[:MOST_KINDS_OF_TASK]
    return tuple(_build_error(first[kind], counts[kind], has_traceback=kind in traced) for kind in kinds)


def _build_error(failure: Failure, episodes: int, *, has_traceback: bool) -> EpisodeError:
    reason, detail, at, role = (text[:LONGEST] for text in (failure.reason, failure.detail, failure.at, failure.role))
    return EpisodeError(reason, detail, at, role, failure.turn, episodes, has_traceback)


def describe_error(error: EpisodeError | Failure) -> str:
    """Return an error in one line: `KeyError: 'x' at flow.py:12 in play (solver, turn 1)`."""
    where = f" at {error.at}" if error.at else ""
    when = f" ({error.role}, {f'turn {error.turn}' if error.turn else 'before its first turn'})" if error.role else ""
    return f"{error.detail or error.reason}{where}{when}"
