"""Words of the sentence about a standstill. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.infra.inflection import inflect
from headrace.producers.rollout.play.running_episodes import ENDLESS
from headrace.schemas.records import WorkerStatus

SHOWN_WORKERS = 3
"""Largest number of workers that a sentence names."""


def describe_waiting(workers: Sequence[WorkerStatus], *, have_tasks: bool) -> str:
    """Return what workers wait for of which none plays; empty if one plays.

    Args:
        workers: Those that are alive.
        have_tasks: Whether tasks wait for them. A worker that plays no episode then hangs, and may not know it.
    """
    idle = "plays no episode, although tasks wait" if have_tasks else ""
    words = [one.detail or ("" if one.episodes_running else idle) for one in workers]
    pairs = zip(workers, words, strict=True)
    if any(one.state == "rolling" and (not word or ENDLESS in word) for one, word in pairs):
        return ""
    named = [f"{w.worker} is {w.state}{f' ({word})' if word else ''}" for w, word in zip(workers, words, strict=True)]
    more = [f"and {len(workers) - SHOWN_WORKERS} more"] if len(workers) > SHOWN_WORKERS else []
    return f"no worker plays: {', '.join([*named[:SHOWN_WORKERS], *more])}"


def describe_playing(workers: Sequence[WorkerStatus], concluded: int, discarded: int, batch: int) -> str:
    """Return what workers do that have not played a batch yet.

    Args:
        workers: Those that play.
        concluded: Groups that have concluded since the newest version.
        discarded: How many of them were discarded.
        batch: Groups of a batch.
    """
    came = "no group has concluded since then"
    if concluded:
        groups = inflect(concluded, "group has", "groups have")
        came = f"{concluded} {groups} concluded since then, {discarded} of them discarded"
    episodes = sum(worker.episodes_running for worker in workers)
    running, waiting = (sum(getattr(w, f"requests_{word}") for w in workers) for word in ("running", "waiting"))
    plays = f"{len(workers)} {inflect(len(workers), 'worker plays', 'workers play')} {episodes} "
    plays += inflect(episodes, "episode")
    if running or waiting:
        plays += f" ({running} {inflect(running, 'request')} in the engine, {waiting} waiting for room there)"
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
