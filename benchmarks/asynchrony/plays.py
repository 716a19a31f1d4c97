"""The shapes of episodes, for the engine without a model. A copy of this file lies beside each recipe of the benchmark.

Each call of a policy asks the question of the problem at a level of its own, so that the recipe gives each kind of call
its own lengths. Nothing is learnt. What counts is who waits for whom, and for how long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from headrace.envs.contract import Actor, Environment, Episode, Problem, RoleTrajectory
from headrace.envs.judging import score_answer
from headrace.envs.scripted import FILLER, Question, read_question
from headrace.envs.transcript import Transcript

ATTEMPT, VERDICT, RETRY = range(3)
"""Levels of the questions of `team`; `turns` asks at level 0."""


async def team(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Play an attempt, a verdict on it, and a second attempt if the verdict rejects, as `solver_verifier` does.

    A verdict of which the script says that it is right rejects a wrong attempt; a wrong one rejects a right attempt.
    """
    solver, verifier = Transcript("solver"), Transcript("verifier")
    is_right = await _ask(solver, actors["solver"], problem, env, ATTEMPT)
    is_judged = await _ask(verifier, actors["verifier"], problem, env, VERDICT)
    sequences, last = [solver.sequence(float(is_right))], is_right
    if is_right != is_judged:
        retry = Transcript("solver", turn=1)
        last = await _ask(retry, actors["solver"], problem, env, RETRY)
        sequences.append(retry.sequence(float(last)))
    judged = RoleTrajectory(float(is_judged), (verifier.sequence(float(is_judged)),))
    return {"solver": RoleTrajectory(float(last), tuple(sequences)), "verifier": judged}


async def turns(
    problem: Problem, env: Environment, actors: Mapping[str, Actor], *, most: int = 10, tool_s: float = 0.0
) -> Episode:
    """Play turns, each followed by a tool, until the script says that an answer is right, or `most` turns.

    The reward is 1 / turns, and 0 without a right answer, so that the rewards of a group differ.
    """
    [(role, actor)] = actors.items()
    transcript, count = Transcript(role), 1
    while not (is_right := await _ask(transcript, actor, problem, env, ATTEMPT)) and count < most:
        await asyncio.sleep(tool_s)
        count += 1
    return {role: RoleTrajectory(is_right / count, (transcript.sequence(),), {"turns": float(count)})}


async def _ask(transcript: Transcript, actor: Actor, problem: Problem, env: Environment, level: int) -> bool:
    """Append a question and its answer; return whether the answer is right."""
    asked = read_question(problem.text)
    assert asked is not None  # noqa: S101 - the environment `scripted` gives nothing else
    question = str(Question(level, asked.number, asked.answer))
    if transcript.ids:
        transcript.observe(actor.encode_plain(FILLER + question))  # or the answer's digit would begin the question
    else:
        transcript.prompt(actor.encode(question))
    made = await actor.generate(transcript.ids)
    transcript.add_generation(made)
    return (await score_answer(env, problem, actor.decode(made.ids))).reward == 1
