"""Scores an answer from a workflow without blocking other episodes."""

from __future__ import annotations

import asyncio
from typing import Protocol, runtime_checkable

from headrace.envs.contract import Environment, Problem, Score


@runtime_checkable
class ScoresInChild(Protocol):
    """An environment that scores in a child process with a time limit, as workers give it to workflows."""

    async def score_in_child(self, problem: Problem, text: str) -> Score:
        """See `Environment.score`; does not block the event loop."""


async def score_answer(env: Environment, problem: Problem, text: str) -> Score:
    """Score a completion in a child process, so that a slow compiler or judge does not block other episodes.

    Raises the errors of `score`, TimeoutError after `rollout.score_limit_s`, and ChildDied if the process dies.
    """
    if isinstance(env, ScoresInChild):
        return await env.score_in_child(problem, text)
    return await asyncio.to_thread(env.score, problem, text)
