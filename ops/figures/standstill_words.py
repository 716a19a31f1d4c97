"""Words of the sentence about a standstill. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable


def describe_playing(workers: int, episodes: int, concluded: int, discarded: int, batch: int) -> str:
    """Return what workers do that have not played a batch yet.

    Args:
        workers: How many play.
        episodes: How many they play now.
        concluded: Groups that have concluded since the newest version.
        discarded: How many of them were discarded.
        batch: Groups of a batch.
    """
    plays = f"{count_things(workers, 'worker')} {'plays' if workers == 1 else 'play'}"
    have = "has" if concluded == 1 else "have"
    came = f"{count_things(concluded, 'group')} {have} concluded since, {discarded} of them discarded"
    came = came if concluded else "no group has concluded since"
    return f"{plays} {count_things(episodes, 'episode')}, and {came}; a batch needs {count_things(batch, 'group')}"


def describe_restarts(prefix: str, processes: Iterable[str], *, has_launcher: bool) -> str:
    """Return what happens to a process that has died.

    Args:
        prefix: Beginning of the names of such processes.
        processes: Names of all processes that a launcher runs here; empty if they are not known.
        has_launcher: Whether `headrace up` runs the run, here or elsewhere.
    """
    known = list(processes)
    if any(name.startswith(prefix) for name in known):
        return "`headrace up` restarts a process that dies; if that does not help, it gives up the run"
    if has_launcher and not known:  # seen from outside, as by `headrace status`
        own = "`headrace up` restarts a process that it started and that dies"
        return f"{own}; if that does not help, it gives up the run"
    return "nothing, unless your own supervisor restarts the process"


def count_things(count: int, what: str) -> str:
    """Return `1 group` or `3 groups`."""
    return f"{count} {what}{'' if count == 1 else 's'}"
