"""Workflows for tests of the rollout worker, found by a worker's process on its PYTHONPATH."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from envs.contract import Actor, Environment, Episode, Generation, Problem, RoleTrajectory
from envs.single_turn import single_turn
from envs.transcript import Transcript

STEP_S = 0.1


async def slow(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Twenty generations with pauses, so that episodes last and weights change beneath them."""
    [(role, actor)] = actors.items()
    transcript = Transcript(role)
    transcript.prompt(actor.encode(problem.prompt))
    made: list[Generation] = []
    for _ in range(20):
        made.append(await actor.generate(transcript.ids, max_tokens=1))
        transcript.generated(made[-1])
        await asyncio.sleep(STEP_S)
    score = env.score(problem, actor.decode(np.concatenate([each.ids for each in made])))
    return {role: RoleTrajectory(score.reward, (transcript.sequence(),), score.parts)}


async def deadly(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Kill the worker for one problem."""
    if problem.extra.get("deadly"):
        os.kill(os.getpid(), signal.SIGKILL)
    return await single_turn(problem, env, actors)


async def held(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Wait, for some problems, until a file is there."""
    go = Path(problem.extra["until"]) if "until" in problem.extra else None
    while go is not None and not go.exists():  # noqa: ASYNC110 - how a test in another process says "go"
        await asyncio.sleep(STEP_S)
    return await single_turn(problem, env, actors)


async def endless(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Say something and never come to an end."""
    [actor] = actors.values()
    await actor.generate(actor.encode(problem.prompt))
    await asyncio.Event().wait()
    return {}
