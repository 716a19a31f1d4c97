"""A workflow with one prompt, one answer and its score."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headrace.envs.chat import Chat
from headrace.envs.contract import Actor, Environment, Episode, Problem, RoleTrajectory
from headrace.envs.judging import score_answer


def check_roles(roles: Collection[str]) -> None:
    """Raise ValueError unless there is one role."""
    if len(roles) != 1:
        raise ValueError(f"workflow single_turn needs exactly one role in the recipe's `policies`, got {sorted(roles)}")


async def single_turn(problem: Problem, env: Environment, actors: Mapping[str, Actor]) -> Episode:
    """Play one turn with the only role, whatever its name.

    Raises ValueError if the recipe has several roles.
    """
    check_roles(actors)
    [(role, actor)] = actors.items()
    chat = Chat.of_problem(actor, role, problem)
    await chat.generate()
    score = await score_answer(env, problem, chat.text)
    return {role: RoleTrajectory(score.reward, chat.sequences(), score.parts)}
