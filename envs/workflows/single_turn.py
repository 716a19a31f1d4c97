"""One question, one answer, judged."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.envs.chat import Chat
from headrace.envs.contract import Actor, Environment, Episode, Problem, RoleTrajectory
from headrace.envs.judging import score_answer


async def single_turn(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Play one turn with the only role there is, whatever it is called.

    Raises ValueError when the recipe gives it several roles.
    """
    if len(actors) != 1:
        raise ValueError(
            f"workflow single_turn needs exactly one role in the recipe's `policies`, got {sorted(actors)}"
        )
    [(role, actor)] = actors.items()
    chat = Chat.of_problem(actor, role, problem)
    await chat.generate()
    score = await score_answer(env, problem, chat.text)
    return {role: RoleTrajectory(score.reward, chat.sequences(), score.parts)}
