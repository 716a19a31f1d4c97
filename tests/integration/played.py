"""Workflows for tests of the rollout worker, found by a worker's process on its PYTHONPATH."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from headrace.envs.contract import Actor, Environment, Episode, Generation, Problem, RoleTrajectory
from headrace.envs.judging import score_answer
from headrace.envs.transcript import Transcript
from headrace.envs.workflows.single_turn import single_turn
from headrace.producers.rollout.play.actor import EngineActor

STEP_S = 0.1


async def slow(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Twenty generations with pauses, so that episodes last and weights change beneath them."""
    [(role, actor)] = actors.items()
    transcript = Transcript(role)
    transcript.prompt(actor.encode(problem.prompt))
    made: list[Generation] = []
    for _ in range(20):
        made.append(await actor.generate(transcript.ids, max_tokens=1))
        transcript.add_generation(made[-1])
        await asyncio.sleep(STEP_S)
    score = await score_answer(env, problem, actor.decode(np.concatenate([each.ids for each in made])))
    return {role: RoleTrajectory(score.reward, (transcript.sequence(),), score.parts)}


async def held(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Wait, for some problems, until a file is there."""
    go = Path(problem.extra["until"]) if "until" in problem.extra else None
    while go is not None and not go.exists():  # noqa: ASYNC110 - how a test in another process says "go"
        await asyncio.sleep(STEP_S)
    return await single_turn(problem, env, actors)


async def stalling(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Make the engine answer nobody any more, for one problem."""
    [actor] = actors.values()
    if problem.extra.get("stalling"):
        assert isinstance(actor, EngineActor)
        actor.engine.generate = _never  # type: ignore[method-assign]
    return await single_turn(problem, env, actors)


async def _never(*_: object, **__: object) -> Generation:
    await asyncio.Event().wait()
    raise AssertionError


async def endless(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Say something and never come to an end."""
    [actor] = actors.values()
    await actor.generate(actor.encode(problem.prompt))
    await asyncio.Event().wait()
    return {}
