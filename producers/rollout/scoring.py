"""A limit on the time that an environment takes to score, since scoring runs inside the event loop.

What is covered: a score that computes or sleeps for ever in Python, or in a regular expression, is interrupted by a
timer signal and its episode fails. What is not: one that hangs inside a C extension cannot be interrupted by anything
but the end of its process; the worker ends then (see `rollout.py`), and the task is found by its start counts.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast

from headrace.envs.contract import Environment, Problem, Score, Split, check_number
from headrace.infra.unreachable import OutOfTime


class ScoreTimeLimit(OutOfTime):
    """The environment did not judge in time."""


class LimitedScoring:
    """An environment whose `score` raises ScoreTimeLimit after `limit_s` seconds; all else is as it was."""

    def __init__(self, environment: Environment, limit_s: float) -> None:
        self.name = environment.name
        self._environment = environment
        self._limit_s = limit_s

    def size(self, split: Split) -> int | None:
        """See `Environment.size`."""
        return self._environment.size(split)

    def problem(self, split: Split, index: int) -> Problem:
        """See `Environment.problem`."""
        return self._environment.problem(split, index)

    def score(self, problem: Problem, text: str) -> Score:
        """See `Environment.score`; a bare number is a reward without parts. Raises TypeError."""
        with limit_time(self._limit_s):
            found: Any = self._environment.score(problem, text)
        if hasattr(found, "reward"):
            return cast("Score", found)
        return Score(
            check_number(
                f"what environment {self.name} returns as a score, where it is no Score(reward, parts),", found
            )
        )

    def __getattr__(self, name: str) -> Any:
        """Leave whatever else a workflow wants to the environment."""
        return getattr(self._environment, name)


@contextmanager
def limit_time(limit_s: float) -> Iterator[None]:
    """Raise ScoreTimeLimit in the block after so many seconds; only the main thread can be limited, others run on.

    Another timer that is running, for instance a test runner's, is set again afterwards.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(_number: int, _frame: FrameType | None) -> None:
        raise ScoreTimeLimit(f"the environment did not score within {limit_s:g} s")

    before = signal.signal(signal.SIGALRM, over)
    began = time.monotonic()
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if remaining:
            signal.setitimer(signal.ITIMER_REAL, max(remaining - (time.monotonic() - began), 1e-3), interval)
