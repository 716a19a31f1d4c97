"""Sums that go wrong: every fourth problem raises, every eighth never comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from headrace.envs.arithmetic import Arithmetic
from headrace.envs.contract import Actor, Environment, Episode, Problem
from headrace.envs.workflows.single_turn import single_turn


class FaultySums(Arithmetic):
    """Arithmetic; the faults are in the workflow."""


async def faulty_turn(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Play one turn, unless the problem is one of those that go wrong."""
    fault = sum(problem.prompt.encode()) % 8
    if fault in (1, 5):
        raise RuntimeError(f"the environment broke on {problem.task_id}")
    if fault == 2:
        await asyncio.Event().wait()
    return await single_turn(problem, env, actors)
