"""Scores an answer from a workflow without blocking other episodes."""

from __future__ import annotations

import asyncio
from typing import Protocol, runtime_checkable

from headrace.envs.contract import Environment, Problem, Score


@runtime_checkable
class ScoresInThreads(Protocol):
    """An environment that scores in threads with a time limit, as workers give it to workflows."""

    async def score_in_thread(self, problem: Problem, text: str) -> Score:
        """See `Environment.score`; does not block the event loop."""


async def score_answer(env: Environment, problem: Problem, text: str) -> Score:
    """Score a completion in a thread, so that a slow compiler or judge does not block other episodes.

    Raises the errors of `score`, and TimeoutError after `rollout.score_limit_s`.
    """
    if isinstance(env, ScoresInThreads):
        return await env.score_in_thread(problem, text)
    return await asyncio.to_thread(env.score, problem, text)
