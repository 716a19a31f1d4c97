"""Judging an answer from a workflow, without keeping the other episodes waiting."""

from __future__ import annotations

import asyncio
from typing import Protocol, runtime_checkable

from headrace.envs.contract import Environment, Problem, Score


@runtime_checkable
class ScoresInThreads(Protocol):
    """An environment with threads of its own for `score`, and a time limit: the one that a worker hands out."""

    async def score_in_thread(self, problem: Problem, text: str) -> Score:
        """See `Environment.score`; the event loop goes on meanwhile."""


async def score_answer(env: Environment, problem: Problem, text: str) -> Score:
    """Judge a completion in a thread: a compiler or a judge may take its time, and other episodes go on meanwhile.

    Raises what `score` raises, and TimeoutError after `rollout.score_limit_s`.
    """
    if isinstance(env, ScoresInThreads):
        return await env.score_in_thread(problem, text)
    return await asyncio.to_thread(env.score, problem, text)
