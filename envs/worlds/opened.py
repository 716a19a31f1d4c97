"""Opens the world of an episode, and checks all that it answers: a world in a child process, or one elsewhere."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from headrace.envs.contract import Problem, check_number
from headrace.envs.isolation import IsolatedEnvironment
from headrace.envs.messages import show_value
from headrace.envs.worlds.contract import Step, World, WorldFailed
from headrace.infra.own_frames import locate_function
from headrace.infra.unreachable import OutOfTime

OPEN_LIMIT_S = 600.0
"""Seconds in which `open_world` must open a world, whatever it waits for, if the environment has no `open_limit_s`."""


def has_world(environment: object) -> bool:
    """Return whether an environment, isolated or not, has worlds."""
    return any(callable(getattr(environment, name, None)) for name in ("act", "open_world"))


async def open_world(env: IsolatedEnvironment, problem: Problem, step_limit_s: float) -> World:
    """Begin an episode in the environment's world. The time that it waits for a world is not the episode's.

    Raises what `OpensWorlds.open_world` raises, and OutOfTime after `OPEN_LIMIT_S`.
    """
    if not callable(getattr(env, "open_world", None)):
        return _InChild(env, problem, step_limit_s)
    with env.wait_for_turn(), _raise_late(f"{env.name} opened no world within {OPEN_LIMIT_S:g} s"):
        async with asyncio.timeout(getattr(env, "open_limit_s", OPEN_LIMIT_S)):
            opened: World = await env.open_world(problem)
    return _Elsewhere(env.name, opened, step_limit_s)


class _InChild:
    """The world of an environment with `act`; its state is in the child process of the episode."""

    observation = ""
    actions: Sequence[Mapping[str, Any]] = ()

    def __init__(self, env: IsolatedEnvironment, problem: Problem, limit_s: float) -> None:
        self._env, self._problem, self._limit_s = env, problem, limit_s

    async def act(self, name: str, arguments: Mapping[str, Any]) -> Step:  # noqa: ARG002 - the protocol's
        """See `World.act`. Raises also what the environment raises, Overdue and ChildDied."""
        text = arguments["text"]
        return await self._env.run(f"{self._env.name}.act", _act, self._problem, (text,), self._limit_s)

    async def close(self) -> None:
        """Do nothing: the child forgets the problem with the episode."""


class _Elsewhere:
    """A world of `open_world`."""

    def __init__(self, name: str, opened: World, limit_s: float) -> None:
        self._name, self._opened, self._limit_s = name, opened, limit_s
        self.observation, self.actions, self.close = opened.observation, opened.actions, opened.close

    async def act(self, name: str, arguments: Mapping[str, Any]) -> Step:
        """See `World.act`. Raises OutOfTime after the time limit."""
        with _raise_late(f"an action in {self._name} took longer than {self._limit_s:g} s"):
            async with asyncio.timeout(self._limit_s):
                found = await self._opened.act(name, arguments)
        return read_step(self._name, found)


@contextmanager
def _raise_late(text: str) -> Iterator[None]:
    """Raise OutOfTime with a text for the time limit of an `asyncio.timeout` in the block."""
    try:
        yield
    except TimeoutError as error:
        if isinstance(error.__cause__, asyncio.CancelledError):
            raise OutOfTime(text) from error
        raise


def _act(environment: Any, problem: Problem, text: str) -> Step:
    """Carry out an action, in the child."""
    what = f"`act` of environment {environment.name}{locate_function(environment.act)}"
    return read_step(what, environment.act(problem, text))


def read_step(what: str, found: object) -> Step:
    """Return what a world answered, its reward as a float. Raises WorldFailed, which names `what`, for no step."""
    if not isinstance(found, Step):
        raise WorldFailed(f"{what} must answer with a Step of headrace.envs.worlds.contract, got {show_value(found)}")
    if not isinstance(found.observation, str):
        raise WorldFailed(f"{what} must answer with a text as observation, got {show_value(found.observation)}")
    if not isinstance(found.done, bool | np.bool_):
        raise WorldFailed(f"{what} must say by True or False whether it is done, got {show_value(found.done)}")
    if found.reward is None:
        return Step(found.observation, None, bool(found.done))
    try:
        reward = check_number(f"the reward of {what}", found.reward)
    except TypeError as error:
        raise WorldFailed(str(error)) from error
    if not math.isfinite(reward):
        raise WorldFailed(f"the reward of {what} must be finite, got {reward}")
    return Step(found.observation, reward, bool(found.done))
