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
    most = f"most of them with {describe_error(found.error)}"
    return f"gets no episode{of}: all {found.episodes:,} since {since} failed, {most}"


def describe_end_of_failing(limit_s: float, *, is_hopeless: bool, has_launcher: bool) -> str:
    """Return what happens by itself; with a limit, of a run in which nothing has ever succeeded."""
    when = f"after {limit_s:g} s in which every episode failed (launch.all_failed_limit_s)"
    itself = "the feeder issues further tasks"
    if not limit_s:
        return itself
    if not has_launcher:
        ends = f"`headrace up` and `headrace watch` end with exit code 1 {when}"
        return f"{itself}; {ends}, but parts that were started one by one continue"
    if is_hopeless:
        return f"nothing more: `headrace up` ends {when}"
    return f"{itself}; `headrace up` ends with exit code 1 {when}"


def advise_on_failing(found: Failing, look: str, *, has_parts: bool) -> str:
    """Return what a person can do.

    Args:
        found: How the episodes fail.
        look: Where the log is that says more.
        has_parts: Whether nothing but a person ends the run, which has parts that were started one by one.
    """
    fix = "stop the parts of the run, fix the error, and start them again" if has_parts else "fix the error"
    what = "where the episodes wait" if found.error.reason == "time_limit" else "the traceback"
    return f"{fix}; {look}, event episode.failed, for {what}"
