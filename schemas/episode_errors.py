"""Groups failed episodes by their error, and describes errors, for workers, curators and views."""

from __future__ import annotations

import re
from collections.abc import Collection

from headrace.schemas.records import EpisodeError, Failure

MOST_KINDS_OF_TASK = 4
LONGEST = 300
"""Most characters of a text in an outcome, because a worker's texts may be of any length."""
ENVIRONMENT = "environment"
"""Reason of an episode whose box, task or judge does not work: it says nothing about the policy."""
RAISED = ("error", "time_limit", ENVIRONMENT)
"""Failure reasons caused by the environment, the workflow or the engine."""
MALFORMED = "invalid"
"""Reason of a group dropped because `validate` refused its trajectories: it counts as one whose episodes failed."""
TOOL_ERROR = "tool_error"
"""Reason of an error of a tool that did not end its episode."""
REPORTED = (*RAISED, TOOL_ERROR, "unreachable", "poison")
"""Failure reasons that are reported; the others come from a run's end or a late evaluation."""


def error_key_of(failure: Failure | EpisodeError) -> tuple[str, str, str]:
    """Return the key by which failures count as one error: reason, type, and location.

    Messages are left out, because they differ from task to task for errors of the same line. Without a location the
    message is used. Numbers are left out of both.
    """
    words = failure.detail.partition(":")[0] if failure.at else failure.detail
    return failure.reason, re.sub("[0-9]+", "", words), failure.at


def group_errors(failures: Collection[Failure]) -> tuple[EpisodeError, ...]:
    """Return the errors of a group's episodes, for its outcome."""
    first: dict[tuple[str, str, str], Failure] = {}
    counts: dict[tuple[str, str, str], int] = {}
    traced = {error_key_of(failure) for failure in failures if failure.traceback}
    for failure in failures:
        if failure.reason in REPORTED:
            kind = error_key_of(failure)
            first.setdefault(kind, failure)
            counts[kind] = counts.get(kind, 0) + 1
    kinds = sorted(first, key=lambda kind: -counts[kind])[:MOST_KINDS_OF_TASK]
    return tuple(_build_error(first[kind], counts[kind], has_traceback=kind in traced) for kind in kinds)


def _build_error(failure: Failure, episodes: int, *, has_traceback: bool) -> EpisodeError:
    reason, detail, at, role = (text[:LONGEST] for text in (failure.reason, failure.detail, failure.at, failure.role))
    return EpisodeError(reason, detail, at, role, failure.turn, episodes, has_traceback)


def build_malformed_error(why: str, episodes: int) -> EpisodeError:
    """Return the error of a group whose trajectories `validate` refused."""
    return EpisodeError(
        RAISED[0], f"the workflow's trajectories cannot be trained on: {why}"[:LONGEST], episodes=episodes
    )


def describe_error(error: EpisodeError | Failure) -> str:
    """Return an error in one line: `KeyError: 'x' at flow.py:12 in play (solver, turn 1)`."""
    where = f" at {error.at}" if error.at else ""
    when = f" ({error.role}, {f'turn {error.turn}' if error.turn else 'before its first turn'})" if error.role else ""
    return f"{error.detail or error.reason}{where}{when}"
