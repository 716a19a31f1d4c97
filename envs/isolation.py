"""Wraps an environment so that its own code, `score` and tools, runs in child processes within time limits.

All calls of an episode go to one child, which keeps the episode's problem: what a tool writes into `problem.extra` is
there for later tools and for `score`.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import structlog

from headrace.envs.contract import Environment, LateScore, Problem, Score, Split, check_number
from headrace.infra.own_frames import locate_function
from headrace.infra.process.child_handle import Call, ChildDied, Overdue
from headrace.infra.process.child_pool import ChildPool, Session

log = structlog.get_logger()
T = TypeVar("T")

SCORING_REMEDY = (
    "the workflow called `env.score` itself, which stops all episodes of the worker until it returns: write `await "
    "score_answer(env, problem, text)` instead (headrace.envs.judging)"
)
HELD_S = 0.5
"""Seconds for which a score may block the event loop without a report."""
LIMIT_KEYS = "rollout.score_limit_s, or rollout.episode_limit_s if that is less"


def score_in_child(environment: Environment, problem: Problem, text: str) -> Score:
    """Score, in the child; a bare number is a reward without parts. Raises TypeError and ValueError."""
    found: Any = environment.score(problem, text)
    if not hasattr(found, "reward"):
        where = locate_function(environment.score)
        what = f"the result of `score` of environment {environment.name}{where} is no Score(reward, parts), so it"
        found = Score(check_number(what, found))
    _refuse_not_finite(f"{environment.name}{locate_function(environment.score)}", found)
    return Score(found.reward, getattr(found, "parts", {}))


def _score_turn(environment: Any, problem: Problem, text: str, results: list[str]) -> float | None:
    """Score one answer, in the child."""
    found = environment.score_turn(problem, text, results)
    if found is None:
        return None
    what = f"the result of `score_turn` of environment {environment.name}{locate_function(environment.score_turn)}"
    reward = check_number(what, found)
    if not math.isfinite(reward):
        raise ValueError(f"{what} must be finite; got {reward}")
    return reward


def _call_with_shared_extra(
    environment: Any, first: Problem, function: Callable[..., Any], problem: Problem, *arguments: Any
) -> Any:
    """Call a function, in the child, with a problem that has the very `extra` of the first one."""
    return function(environment, replace(problem, extra=first.extra), *arguments)


def _refuse_not_finite(scorer: str, score: Any) -> None:
    """Raise ValueError, which names scorer and value, for NaN and infinities: means could not include them."""
    numbers = {
        "the reward": score.reward,
        **{f"part {name!r}": part for name, part in getattr(score, "parts", {}).items()},
    }
    for what, number in numbers.items():
        if not math.isfinite(number):
            raise ValueError(f"{what} in a score of environment {scorer} must be finite; got {number}")


class IsolatedEnvironment:
    """An environment whose code runs in child processes. It is built in each of them.

    Args:
        environment: The environment as built in this process, for all but `score` and tools.
        build: Builds it in a child; by default, children get a copy of the object.
        limit_s: Seconds that a score may take.
        scores: How many scores run at once.
        waiting: The block in which a call waits for its turn.

    Raises TypeError for an object of which there can be no copy in another process.
    """

    _session: Session | None = None
    """Of an episode."""
    _first: Problem | None = None
    """The problem whose `extra` all problems of the episode share."""

    def __init__(
        self,
        environment: Environment,
        build: Callable[[], Environment] | None = None,
        limit_s: float = 10.0,
        scores: int = 8,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.name, self._environment = environment.name, environment
        build = partial(_build_in_child, build or partial(_get_same, environment))
        self.pool = ChildPool(f"environment {self.name}", build, getattr(environment, "processes", 0))
        self._limit_s, self._turns, self._waiting = limit_s, asyncio.Semaphore(scores), waiting
        self._counts: Counter[str] = Counter()
        """Of what is logged; shared by all episodes."""

    def size(self, split: Split) -> int | None:
        """See `Environment.size`."""
        return self._environment.size(split)

    def problem(self, split: Split, index: int) -> Problem:
        """See `Environment.problem`."""
        return self._environment.problem(split, index)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the environment."""
        return getattr(self._environment, name)

    def wait_for_turn(self) -> AbstractContextManager[None]:
        """Return the block in which the episode may wait for something that others have: see `waiting`."""
        return self._waiting()

    @contextmanager
    def open_episode(self) -> Iterator[IsolatedEnvironment]:
        """Give the environment of one episode, or of the same one inside of it."""
        with self._enter_session() as session:
            episode = object.__new__(IsolatedEnvironment)
            vars(episode).update(vars(self), _session=session)
            yield episode

    def share_extra(self, first: Problem) -> None:
        """Let all further calls of this episode see the `extra` of one problem, and what calls wrote into it.

        What a problem has in its own `extra` is not seen then.
        """
        self._first = first

    @contextmanager
    def _enter_session(self) -> Iterator[Session]:
        session = self._session or self.pool.open_session()
        try:
            yield session
        finally:
            if self._session is None:
                session.end()

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
            function: Sync or async, of the top level of a module.
            problem: The problem of the episode.
            arguments: Values that can be pickled.
            limit_s: Seconds that it may take.

        Raises what it raises, Overdue, and ChildDied.
        """
        late = f"{what} took longer than {limit_s:g} s"
        found: T = await self._call(Call(what, function, problem, arguments, limit_s, late, problem.task_id))
        return found

    async def score_in_child(self, problem: Problem, text: str) -> Score:
        """Do as `score`, without blocking the event loop."""
        call = self._prepare_score(problem, text)
        with self._waiting():
            await self._turns.acquire()
        try:
            found: Score = await self._call(call)
        except (Overdue, ChildDied) as error:
            return self._take_late(error, problem)
        else:
            return found
        finally:
            self._turns.release()

    async def score_turn(self, problem: Problem, text: str, results: Sequence[str]) -> float | None:
        """Return the part of the reward that one answer has earned; None if the environment rewards no turns.

        Raises the errors of its method `score_turn`, Overdue and ChildDied.
        """
        if not callable(getattr(self._environment, "score_turn", None)):
            return None
        return await self.run(f"{self.name}.score_turn", _score_turn, problem, (text, list(results)), self._limit_s)

    def score(self, problem: Problem, text: str) -> Score:
        """See `Environment.score`; blocks. Raises Overdue after the time limit, and ChildDied."""
        began, call = time.monotonic(), self._prepare_score(problem, text)
        with self._enter_session() as session:
            try:
                found: Score = session.call_and_wait(call)
            except (Overdue, ChildDied) as error:
                found = self._take_late(error, problem)
        held_s = time.monotonic() - began
        if held_s > HELD_S and threading.current_thread() is threading.main_thread():
            self._counts["held"] += 1
            if self._counts["held"] == 1:
                # A workflow called `score` directly, which blocked the worker's event loop; logged once.
                log.warning("score.held_loop", scorer=self.name, s=round(held_s, 2), remedy=SCORING_REMEDY)
        return found

    async def _call(self, call: Call) -> Any:
        if (first := self._first) is not None:
            arguments = (call.function, call.kept, *call.arguments)
            call = replace(
                call, function=_call_with_shared_extra, kept=first, arguments=arguments, kept_name=first.task_id
            )
        with self._enter_session() as session:
            with self._waiting():
                await session.wait_until_ready()
            return await session.call(call)

    def _find_late(self, problem: Problem) -> LateScore | None:
        found: LateScore | None = getattr(self._environment, "late_score", lambda _: None)(problem)
        return found

    def _prepare_score(self, problem: Problem, text: str) -> Call:
        late, limit_s = self._find_late(problem), self._limit_s
        limit_s = limit_s if late is None else min(late.limit_s, limit_s)
        why = f"environment {self.name} did not score within {limit_s:g} s ({LIMIT_KEYS})"
        what = f"{self.name}.score"
        return Call(
            what,
            score_in_child,
            problem,
            (text,),
            limit_s,
            why,
            kept_name=problem.task_id,
            may_repeat=True,
            leaves_state=late is None,
        )

    def _take_late(self, error: Overdue | ChildDied, problem: Problem) -> Score:
        """Return the score of a text that its judge could not judge, if there is such a score; else raise the error."""
        late = self._find_late(problem) if error.is_own else None
        self._counts["late"] += 1
        if str(times := self._counts["late"]).strip("0") == "1":
            counts = late is not None
            # A score took too long or its process died. The episode fails, unless the environment has a score for this
            # (`counts`). Logged at the 1st, 10th, 100th time.
            log.warning("score.overdue", scorer=self.name, why=str(error), at=error.at, counts=counts, times=times)
        if late is None:
            raise error
        return late.score


def open_episode(environment: Environment) -> AbstractContextManager[Environment]:
    """Give the environment of an episode. One that is not isolated is the same for all."""
    return environment.open_episode() if isinstance(environment, IsolatedEnvironment) else nullcontext(environment)


def isolate(environment: Environment) -> AbstractContextManager[IsolatedEnvironment]:
    """Give the isolated environment of an episode for an environment of any kind."""
    isolated = environment if isinstance(environment, IsolatedEnvironment) else IsolatedEnvironment(environment)
    return isolated.open_episode()


def _build_in_child(build: Callable[[], Environment]) -> Environment:
    environment = build()
    getattr(environment, "prepare_scoring", lambda: None)()
    return environment


def _get_same(environment: Environment) -> Environment:
    return environment
