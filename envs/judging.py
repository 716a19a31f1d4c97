"""Scores an answer from a workflow without blocking other episodes."""

from __future__ import annotations

import asyncio

from headrace.envs.contract import Environment, Problem, Score
from headrace.envs.isolation import IsolatedEnvironment


async def score_answer(env: Environment, problem: Problem, text: str) -> Score:
    """Score a completion in a child process, so that a slow compiler or judge does not block other episodes.

    Raises the errors of `score`, TimeoutError after `rollout.score_limit_s`, and ChildDied if the process dies.
    """
    if isinstance(env, IsolatedEnvironment):
        return await env.score_in_child(problem, text)
    return await asyncio.to_thread(env.score, problem, text)
