"""Wraps an environment so that its own code, `score` and tools, runs in child processes within time limits.

All calls of an episode go to one child, which keeps the episode's problem: what a tool writes into `problem.extra` is
there for later tools and for `score`.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import structlog

from headrace.envs.contract import Environment, LateScore, Problem, Score, Split, check_number
from headrace.infra.own_frames import locate_function
from headrace.infra.process.child_handle import Call, ChildDied, Overdue
from headrace.infra.process.child_pool import ChildPool, Session

log = structlog.get_logger()

SCORING_REMEDY = (
    "the workflow called `env.score` itself, which stops all episodes of the worker until it returns: write `await "
    "score_answer(env, problem, text)` instead (headrace.envs.judging)"
)
HELD_S = 0.5
"""Seconds for which a score may block the event loop without a report."""
LIMIT_KEYS = "rollout.score_limit_s, or rollout.episode_limit_s if that is less"


T = TypeVar("T")


def score_in_child(environment: Environment, problem: Problem, text: str) -> Score:
    """Score, in the child; a bare number is a reward without parts. Raises TypeError and ValueError."""
    found: Any = environment.score(problem, text)
    if not hasattr(found, "reward"):
        where = locate_function(environment.score)
        what = f"the result of `score` of environment {environment.name}{where} is no Score(reward, parts), so it"
        found = Score(check_number(what, found))
    _refuse_not_finite(environment.name, found)
    return Score(found.reward, getattr(found, "parts", {}))


def _refuse_not_finite(scorer: str, score: Any) -> None:
    """Raise ValueError, which names scorer and value, for NaN and infinities: means could not include them."""
    numbers = {
        "the reward": score.reward,
        **{f"part {name!r}": part for name, part in getattr(score, "parts", {}).items()},
    }
    for what, number in numbers.items():
        if not math.isfinite(number):
            raise ValueError(f"{what} in a score of environment {scorer} must be finite; got {number}")


class _Wrapped:
    """Has all attributes of an environment."""

    def __init__(self, environment: Environment) -> None:
        self.name = environment.name
        self._environment = environment

    def size(self, split: Split) -> int | None:
        """See `Environment.size`."""
        return self._environment.size(split)

    def problem(self, split: Split, index: int) -> Problem:
        """See `Environment.problem`."""
        return self._environment.problem(split, index)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the environment."""
        return getattr(self._environment, name)


class IsolatedEnvironment(_Wrapped):
    """An environment whose code runs in child processes. It is built in each of them.

    Args:
        environment: The environment as built in this process, for all but `score` and tools.
        build: Builds it in a child; by default, children get a copy of the object.
        limit_s: Seconds that a score may take.
        scores: How many scores run at once.
        waiting: The block in which a score waits for its turn.

    Raises TypeError for an object of which there can be no copy in another process.
    """

    def __init__(
        self,
        environment: Environment,
        build: Callable[[], Environment] | None = None,
        limit_s: float = 10.0,
        scores: int = 8,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        super().__init__(environment)
        try:
            self.pool = ChildPool(
                partial(_build_in_child, build or partial(_get_same, environment)), getattr(environment, "processes", 0)
            )
        except TypeError as error:
            raise TypeError(f"environment {self.name}: {error}") from error
        self.limit_s, self.waiting = limit_s, waiting
        self.room = asyncio.Semaphore(scores)
        self.has_held = False
        """Whether blocking scores were already reported."""
        self.late_scores = 0

    def score(self, problem: Problem, text: str) -> Score:
        """See `EpisodeEnvironment.score`, for a score outside of any episode."""
        with self.open_episode() as episode:
            return episode.score(problem, text)

    async def score_in_child(self, problem: Problem, text: str) -> Score:
        """See `EpisodeEnvironment.score_in_child`, for a score outside of any episode."""
        with self.open_episode() as episode:
            return await episode.score_in_child(problem, text)

    @contextmanager
    def open_episode(self) -> Iterator[EpisodeEnvironment]:
        """Give the environment of one episode."""
        session = self.pool.open_session()
        try:
            yield EpisodeEnvironment(self, session)
        finally:
            session.end()


class EpisodeEnvironment(_Wrapped):
    """An isolated environment for one episode, as workflows get it."""

    def __init__(self, isolated: IsolatedEnvironment, session: Session) -> None:
        super().__init__(isolated._environment)  # noqa: SLF001 - it is of the same kind
        self._isolated, self._session = isolated, session

    def score(self, problem: Problem, text: str) -> Score:
        """See `Environment.score`; blocks. Raises Overdue after the time limit, and ChildDied."""
        began = time.monotonic()
        call, late = self._prepare_score(problem, text)
        try:
            found: Score = self._session.call_and_wait(call)
        except (Overdue, ChildDied) as error:
            found = self._take_late(error, late)
        held_s = time.monotonic() - began
        is_main = threading.current_thread() is threading.main_thread()
        if held_s > HELD_S and is_main and not self._isolated.has_held:
            self._isolated.has_held = True
            log.warning("score.held_loop", scorer=self.name, s=round(held_s, 2), remedy=SCORING_REMEDY)
        return found

    async def score_in_child(self, problem: Problem, text: str) -> Score:
        """See `envs.judging.ScoresInChild`."""
        call, late = self._prepare_score(problem, text)
        with self._isolated.waiting():
            await self._isolated.room.acquire()
            try:
                await self._session.wait_until_ready()
            except BaseException:
                self._isolated.room.release()
                raise
        try:
            found: Score = await self._session.call(call)
        except (Overdue, ChildDied) as error:
            found = self._take_late(error, late)
        finally:
            self._isolated.room.release()
        return found

    async def run(
        self,
        what: str,
        function: Callable[..., T | Coroutine[Any, Any, T]],
        problem: Problem,
        arguments: tuple[Any, ...],
        limit_s: float,
    ) -> T:
        """Return `function(environment, problem, *arguments)`, run in the child process of the episode.

        Args:
            what: Name of what runs, for errors.
            function: Of the top level of a module.
            problem: The problem of the episode.
            arguments: Values that can be pickled.
            limit_s: Seconds that it may take.

        Raises what it raises, Overdue, and ChildDied.
        """
        with self._isolated.waiting():
            await self._session.wait_until_ready()
        late = f"{what} took longer than {limit_s:g} s"
        found: T = await self._session.call(Call(what, function, problem, arguments, limit_s, late))
        return found

    def _prepare_score(self, problem: Problem, text: str) -> tuple[Call, LateScore | None]:
        late: LateScore | None = getattr(self._environment, "late_score", lambda _: None)(problem)
        limit_s = self._isolated.limit_s if late is None else min(late.limit_s, self._isolated.limit_s)
        why = f"environment {self.name} did not score within {limit_s:g} s ({LIMIT_KEYS})"
        what = f"{self.name}.score"
        call = Call(what, score_in_child, problem, (text,), limit_s, why, may_repeat=True, leaves_state=late is None)
        return call, late

    def _take_late(self, error: Overdue | ChildDied, late: LateScore | None) -> Score:
        """Return the score of a text that its judge could not judge, if there is such a score; else raise the error."""
        is_own = isinstance(error, Overdue) or error.is_own
        counts = late is not None and is_own
        self._isolated.late_scores += 1
        if str(times := self._isolated.late_scores).strip("0") == "1":
            log.warning("score.overdue", scorer=self.name, why=str(error), at=error.at, counts=counts, times=times)
        if late is None or not is_own:
            raise error
        return late.score


def open_episode(environment: Environment) -> AbstractContextManager[Environment]:
    """Give the environment of an episode. One that is not isolated is the same for all."""
    return environment.open_episode() if isinstance(environment, IsolatedEnvironment) else nullcontext(environment)


def isolate(environment: Environment) -> AbstractContextManager[EpisodeEnvironment]:
    """Give the environment of an episode for an environment of any kind."""
    if isinstance(environment, EpisodeEnvironment):
        return nullcontext(environment)
    if not isinstance(environment, IsolatedEnvironment):
        environment = IsolatedEnvironment(environment)
    return environment.open_episode()


def _build_in_child(build: Callable[[], Environment]) -> Environment:
    environment = build()
    getattr(environment, "prepare_scoring", lambda: None)()
    return environment


def _get_same(environment: Environment) -> Environment:
    return environment
