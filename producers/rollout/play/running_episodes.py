"""The episodes that are played now: how many turns they have, and where they are if none of them ends."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from statistics import median_low

from headrace.infra.inflection import format_ordinal
from headrace.infra.own_frames import locate_wait
from headrace.producers.rollout.play.actor import EngineActor

EPISODE = "episode"
"""Name of the asyncio tasks in which workflows run."""
QUIET_S = 20.0
"""Seconds without the end of an episode after which their turns are told."""
MANY_TURNS = 16
"""Episodes of fewer turns are not told: they may be long."""
ENDLESS = "none has ended"
"""Words that only `describe_endless` uses."""


class RunningEpisodes:
    """Counts turns by running episode. Only the event loop may use it.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._casts: dict[int, Collection[EngineActor]] = {}
        """Id of an episode's actors to the actors."""
        self._quiet_since_s = clock()

    @contextmanager
    def play(self, actors: Collection[EngineActor]) -> Iterator[None]:
        """Count the block as an episode of these actors."""
        if not self._casts:
            self._quiet_since_s = self._clock()
        self._casts[id(actors)] = actors
        try:
            yield
        finally:
            del self._casts[id(actors)]
            self._quiet_since_s = self._clock()

    def describe_endless(self) -> str:
        """Return how far the episodes are if they have many turns and none has ended for long; else an empty text."""
        quiet_s = self._clock() - self._quiet_since_s
        if not self._casts or quiet_s < QUIET_S:
            return ""
        turns = median_low(sum(actor.calls for actor in actors) for actors in self._casts.values())
        if turns < MANY_TURNS:
            return ""
        tokens = sum(actor.tokens for actors in self._casts.values() for actor in actors) // len(self._casts)
        at = find_most_common_wait()
        where = f"; most are at {at}" if at else ""
        return (
            f"episodes play their {format_ordinal(turns)} turn, with {tokens:,} tokens each so far, and {ENDLESS} in "
            f"{quiet_s:.0f} s{where}"
        )


def find_most_common_wait() -> str:
    """Return where most episodes of this event loop wait, as `flow.py:12 in play`; empty if none runs."""
    waits = Counter(locate_wait(task) for task in asyncio.all_tasks() if task.get_name() == EPISODE)
    return waits.most_common(1)[0][0] if waits else ""
