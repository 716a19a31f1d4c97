"""Wraps an environment for workflows: it scores in threads, each score within a time limit.

A workflow that calls `score` itself, instead of `envs.judging.score_answer`, blocks the event loop. A timer signal
interrupts a score that computes or sleeps too long, in Python or in a regular expression, and its episode fails. A
score that hangs in another C extension can only be ended with its process; then the worker ends (see `watchdog.py`),
and start counts find the task.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, cast

import structlog

from headrace.envs.contract import Environment, Problem, Score, Split, check_number
from headrace.infra.own_frames import locate_function
from headrace.producers.rollout.play.score_threads import LIMIT_KEYS, ScoreThreads, ScoreTimeLimit

__all__ = ["LimitedScoring", "ScoreTimeLimit", "limit_time"]

log = structlog.get_logger()

SCORING_REMEDY = (
    "the workflow called `env.score` itself, which stops all episodes of the worker until it returns: write `await "
    "score_answer(env, problem, text)` instead (headrace.envs.judging)"
)
HELD_S = 0.5
"""Seconds for which a score may block the event loop without a report."""


class LimitedScoring:
    """An environment whose `score` raises ScoreTimeLimit after `limit_s` seconds; all else is unchanged.

    Args:
        environment: The environment to wrap.
        limit_s: Seconds that a score may take.
        threads: How many scores run at once.
    """

    def __init__(self, environment: Environment, limit_s: float, threads: int = 1) -> None:
        self.name = environment.name
        self._environment = environment
        self._limit_s = limit_s
        self._threads = ScoreThreads(environment.name, threads, limit_s)
        self._has_held = False
        """Whether blocking scores were already reported."""

    def size(self, split: Split) -> int | None:
        """See `Environment.size`."""
        return self._environment.size(split)

    def problem(self, split: Split, index: int) -> Problem:
        """See `Environment.problem`."""
        return self._environment.problem(split, index)

    def score(self, problem: Problem, text: str) -> Score:
        """See `Environment.score`; a bare number is a reward without parts. Raises TypeError."""
        began = time.monotonic()
        with limit_time(self._limit_s, self.name):
            found = self._score(problem, text)
        held_s = time.monotonic() - began
        if held_s > HELD_S and not self._has_held and threading.current_thread() is threading.main_thread():
            self._has_held = True
            log.warning("score.held_loop", scorer=self.name, s=round(held_s, 2), remedy=SCORING_REMEDY)
        return found

    async def score_in_thread(self, problem: Problem, text: str) -> Score:
        """See `envs.judging.ScoresInThreads`. Raises TypeError, and ScoreTimeLimit."""
        return await self._threads.run(partial(self._score, problem, text))

    def _score(self, problem: Problem, text: str) -> Score:
        found: Any = self._environment.score(problem, text)
        if not hasattr(found, "reward"):
            where = locate_function(self._environment.score)
            what = f"the result of `score` of environment {self.name}{where} is no Score(reward, parts), so it"
            found = Score(check_number(what, found))
        _refuse_not_finite(self.name, found)
        return cast("Score", found)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the environment."""
        return getattr(self._environment, name)


def _refuse_not_finite(scorer: str, score: Any) -> None:
    """Raise ValueError, which names scorer and value, for NaN and infinities: means could not include them."""
    numbers = {
        "the reward": score.reward,
        **{f"part {name!r}": part for name, part in getattr(score, "parts", {}).items()},
    }
    for what, number in numbers.items():
        if not math.isfinite(number):
            raise ValueError(f"{what} in a score of environment {scorer} must be finite; got {number}")


@contextmanager
def limit_time(limit_s: float, scorer: str) -> Iterator[None]:
    """Raise ScoreTimeLimit in the block after `limit_s` seconds, in the main thread; other threads have no limit.

    Another running timer, for instance a test runner's, is restored afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_limit(_number: int, _frame: FrameType | None) -> None:
        raise ScoreTimeLimit(f"environment {scorer} did not score within {limit_s:g} s ({LIMIT_KEYS})")

    before = signal.signal(signal.SIGALRM, raise_limit)
    began = time.monotonic()
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if remaining:
            signal.setitimer(signal.ITIMER_REAL, max(remaining - (time.monotonic() - began), 1e-3), interval)
