"""How many requests a generation server gets at once, computed from what it reports. No clock and no I/O here.

Too few requests leave a server idle. With too many its KV cache is full, and it discards unfinished answers (it
retracts or preempts them) and computes them again. The right number depends on the lengths of prompts and answers, and
changes while a policy learns.
"""

from __future__ import annotations

import math

from headrace.producers.engines.served.server_api import ServerLoad

FIRST = 16
"""Limit before the first reading, which shows how many requests are certain to fit."""
MOST_GROWTH = 4.0
"""Factor by which one change may raise the limit."""
LEAST_GROWTH, MOSTLY_RUN = 1 / 16, 0.5
"""At least this share of the limit, so that it also moves where the cache seems full but for a little. But if less than
half of the limit runs, the server has other limits, and more requests do not fill its cache."""
AIM = 0.95
"""Share of the KV cache that a change aims to fill."""
FEW_RETRACTIONS = 1.0
"""Retractions per answer up to which the limit may grow: a cache without any retraction has room left."""
MANY_RETRACTIONS = 1.5
"""Retractions per answer above which the limit is cut, because from here they grow quickly."""
LONG_QUEUE, SHORTEST_QUEUE = 1 / 8, 2
"""A server's own queue is long when it has more than this share of the running requests, and more than this number."""
QUEUE_READINGS = 2
"""Consecutive readings with a long queue that cut the limit; a single one may only show new prompts."""
SPARE = 17 / 16
"""A cut leaves so many times what the server could run."""
DEEPEST_QUEUE_CUT, DEEPEST_CUT, SMALLEST_CUT = 0.75, 0.5, 0.95
"""Share of the limit that one cut for a queue, and one for retractions, leaves at least; and leaves at most."""
MEAN_OVER = 32
"""Requests over which the mean of their largest size is taken."""
NO_LIMIT = 1_000_000


class Admission:
    """The number of requests that one server may have at once.

    A turn is as many answers as the limit allows requests, so that it spans a whole answer, and at least one reading
    while requests run. At each reading, in order:

    - Raise to what is certain to fit: the cache, divided by prompt and most tokens of a request.
    - Cut for retractions, as soon as there are more than `MANY_RETRACTIONS` for each answer of a turn: to what the
      server ran while others waited in it.
    - Cut for a queue, when it is long at `QUEUE_READINGS` readings without a retraction: to what runs.
    - At the end of a turn grow if requests were held back, retractions are few, and none waits in the server except for
      retractions: to as many as fill the cache, if each takes as much as those that ran, but at least a little if most
      of the limit runs. Else hold.

    A server that does not report the size of its cache has no limit.

    Args:
        exact: A fixed limit; 0 to find it.
    """

    def __init__(self, exact: int = 0) -> None:
        self.why = ""
        """Reason of the last change of the limit."""
        self._exact, self._limit = exact, exact or FIRST
        self._is_told = True
        """Whether the server reports what is needed to find a limit."""
        self._mean_size = 0.0
        self._ended = 0
        self._retractions = math.inf
        """The server's own count at the last reading; before the first one, no count is a rise."""
        self._queue_readings = 0
        self._turn = _Turn(FIRST, 0)

    @property
    def limit(self) -> int:
        """Requests that the server may have at once."""
        return self._limit if self._exact or self._is_told else NO_LIMIT

    def note_request(self, size: int) -> None:
        """Note a request that takes at most this number of tokens, its prompt included."""
        self._mean_size += (size - self._mean_size) / (MEAN_OVER if self._mean_size else 1)

    def note_ended(self) -> None:
        """Note that a request ended."""
        self._ended += 1

    def look(self, load: ServerLoad, under_way: int, held_back: int) -> None:
        """Take a reading and change the limit by it.

        Args:
            load: What the server reports.
            under_way: Requests that it has, by our count.
            held_back: Requests that wait here because of the limit.
        """
        self._is_told = load.capacity_tokens > 0
        if self._exact or not self._is_told:
            return
        retracted = int(max(0.0, load.retractions - self._retractions))  # a restarted server counts from 0
        self._retractions = load.retractions
        turn, ended = self._turn, self._ended - self._turn.began_at
        turn.add(load, retracted, held_back)
        certain = max(1, int(load.capacity_tokens / self._mean_size)) if self._mean_size else 1
        if self._limit < certain:
            self._change(certain, "the KV cache always has room for this many requests")
        elif turn.retracted > MANY_RETRACTIONS * max(ended, turn.answers):
            self._change(max(certain, turn.find_cut(self._limit)), "the server retracts too many requests")
        elif self._has_long_queue(load, under_way) and not turn.retracted:
            runs = math.ceil(SPARE * load.running) + 1
            cut = max(certain, runs, int(DEEPEST_QUEUE_CUT * self._limit))
            self._change(min(cut, self._limit), "requests wait in the server")
        elif ended >= turn.answers and turn.busy:
            is_free = turn.was_held_back and (turn.retracted or not load.waiting)
            if is_free and turn.retracted <= FEW_RETRACTIONS * ended:
                growth = min(max(turn.find_least_growth(self._limit), turn.find_fitting() / self._limit), MOST_GROWTH)
                self._change(math.ceil(self._limit * growth), "the cache has room" if growth > 1 else self.why)
            else:
                self._change(self._limit, self.why)

    def _has_long_queue(self, load: ServerLoad, under_way: int) -> bool:
        is_long = load.waiting > max(SHORTEST_QUEUE, LONG_QUEUE * load.running)
        # After a cut it has more than the limit, and its queue says nothing about that.
        self._queue_readings = self._queue_readings + 1 if is_long and under_way <= self._limit else 0
        return self._queue_readings >= QUEUE_READINGS

    def _change(self, limit: int, why: str) -> None:
        """Set the limit, which may be the one before, and begin a turn."""
        self._limit, self.why = limit, why
        self._queue_readings = 0
        self._turn = _Turn(limit, self._ended)


class _Turn:
    """Sums of the readings since the last change, for a given number of answers."""

    def __init__(self, answers: int, began_at: int) -> None:
        self.answers, self.began_at = answers, began_at
        self.retracted = 0
        self.was_held_back = False
        self.busy = 0
        """Readings at which requests ran."""
        self._uses, self._ran = 0.0, 0
        """Share of the cache and number of requests at these readings, added up."""
        self._crowded, self._ran_crowded = 0, 0
        """Readings at which requests waited in the server, and what ran then, added up."""

    def add(self, load: ServerLoad, retracted: int, held_back: int) -> None:
        """Add a reading."""
        self.retracted += retracted
        self.was_held_back |= held_back > 0
        if load.running:
            self.busy += 1
            self._uses += load.used_tokens / load.capacity_tokens
            self._ran += load.running
        if load.waiting:
            self._crowded += 1
            self._ran_crowded += load.running

    def find_fitting(self) -> float:
        """Return how many requests like those that ran fill the cache.

        A server that is busy with HTTP may run far fewer requests than it has got: its cache is empty then, however
        many there are.
        """
        return AIM * self._ran / self._uses if self._uses else math.inf

    def find_least_growth(self, limit: int) -> float:
        """Return the factor by which a limit grows at least."""
        return 1 + LEAST_GROWTH if self._ran >= MOSTLY_RUN * limit * self.busy else 1.0

    def find_cut(self, limit: int) -> int:
        """Return how many requests of the limit the server could run."""
        ran = SPARE * self._ran_crowded / self._crowded if self._crowded else 0.0
        return max(1, min(int(SMALLEST_CUT * limit), max(int(DEEPEST_CUT * limit), int(ran))))
