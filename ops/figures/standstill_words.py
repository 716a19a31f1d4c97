"""Words of the sentence about a standstill. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.infra.inflection import inflect


def describe_playing(workers: int, episodes: int, concluded: int, discarded: int, batch: int) -> str:
    """Return what workers do that have not played a batch yet.

    Args:
        workers: How many play.
        episodes: How many they play now.
        concluded: Groups that have concluded since the newest version.
        discarded: How many of them were discarded.
        batch: Groups of a batch.
    """
    came = "no group has concluded since then"
    if concluded:
        groups = inflect(concluded, "group has", "groups have")
        came = f"{concluded} {groups} concluded since then, {discarded} of them discarded"
    plays = f"{workers} {inflect(workers, 'worker plays', 'workers play')} {episodes} {inflect(episodes, 'episode')}"
    return f"{plays}, and {came}; a batch needs {batch} {inflect(batch, 'group')}"


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
