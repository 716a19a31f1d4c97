"""What is said of a policy whose episodes all fail. No I/O, no clock."""

from __future__ import annotations

from headrace.ops.figures.failing import Failing
from headrace.schemas.episode_errors import describe_error


def describe_failing(found: Failing, workflows: int, since: str) -> str:
    """Return what a policy lacks, after its name.

    Args:
        found: How its episodes fail.
        workflows: How many train it; of several, those that fail are named.
        since: Of the first failure, in words.
    """
    names = ", ".join(found.streams)
    of = f" of {'workflow' if len(found.streams) == 1 else 'workflows'} {names}" if workflows > 1 else ""
    most = f"most of them by {describe_error(found.error)}"
    return f"gets no episode{of}: all {found.episodes:,} since {since} failed, {most}"


def describe_end_of_failing(limit_s: float, *, is_hopeless: bool) -> str:
    """Return what happens by itself; with a limit, of a run in which nothing has ever succeeded."""
    if is_hopeless:
        return f"nothing more: `headrace up` ends after {limit_s:g} s of this (launch.all_failed_limit_s)"
    ends = f"; `headrace up` ends with exit code 1 after {limit_s:g} s of this (launch.all_failed_limit_s)"
    return "the feeder issues further tasks" + (ends if limit_s else "")
