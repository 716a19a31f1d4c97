"""The interface of worlds: environments in which an episode is a chain of actions and observations.

The workflow `world` plays them, and `headrace serve-env` serves them. A world in Python has one method, `act`; its
state is the episode's own copy of `problem.extra`. A world elsewhere has `open_world`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from headrace.envs.contract import Problem
from headrace.infra.errors import EnvironmentBroken


@dataclass(frozen=True, slots=True)
class Step:
    """What a world answers to one action."""

    observation: str
    """What the policy reads next."""
    reward: float | None = None
    """What the action earned; None if the world says nothing. The rewards of an episode add up."""
    done: bool = False
    """Whether the episode is over."""


@runtime_checkable
class Acts(Protocol):
    """A world whose actions are texts, as a part of an environment. The problem's prompt has the first observation."""

    def act(self, problem: Problem, action: str) -> Step:
        """Carry out one action; what lasts is written into `problem.extra`. It must not raise for any text."""


class World(Protocol):
    """A world that one episode has open."""

    observation: str
    """What the policy reads first, after the problem's prompt; may be empty."""
    actions: Sequence[Mapping[str, Any]]
    """JSON schemas of the actions, as tools; empty if an action is a text."""

    async def act(self, name: str, arguments: Mapping[str, Any]) -> Step:
        """Carry out one action; that of a text has no name, and the text as argument `text`.

        Raises BadArguments (envs/tools/functions.py) for an action that the world refuses, which the policy then reads;
        ConnectionError if the world is away, and WorldFailed if it failed.
        """

    async def close(self) -> None:
        """Give the world back. Raises nothing."""


@runtime_checkable
class OpensWorlds(Protocol):
    """An environment whose worlds are elsewhere, such as at a server."""

    async def open_world(self, problem: Problem) -> World:
        """Begin an episode. Raises ConnectionError if the world is away, and WorldFailed if it failed.

        It may wait for a place, up to `OPEN_LIMIT_S` of envs/worlds/opened.py.
        """


class WorldFailed(EnvironmentBroken):
    """A world broke its own rules or died. The episode is a failure with this reason, never a reward of 0."""
