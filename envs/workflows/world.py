"""A workflow in a world: the policy acts, and reads what the world answers, until the episode is over."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from headrace.envs.chat import Chat
from headrace.envs.contract import Actor, Environment, Episode, Generation, Problem, RoleTrajectory
from headrace.envs.isolation import isolate
from headrace.envs.tool_calls import InvalidToolCall, ToolCall
from headrace.envs.tools.forms import AUTO, CALLS, HERMES, choose_form, fit_to_policy
from headrace.envs.tools.functions import Tool
from headrace.envs.tools.outcomes import Limits, build_outcome
from headrace.envs.tools.turns import parse_calls
from headrace.envs.worlds.actions import (
    CUT,
    MAX_CALLS,
    MAX_TURNS,
    OBSERVATION_CHARS,
    STEP_LIMIT_S,
    build_messages,
    build_prompt,
    carry_out,
    list_actions,
    read_text,
)
from headrace.envs.worlds.contract import World
from headrace.envs.worlds.opened import has_world, open_world

PARTS = ("turns", "actions", "bad_calls", "unknown_tools", "cut_outputs", "done")


def check_roles(roles: Collection[str]) -> None:
    """Raise ValueError unless there is one role."""
    if len(roles) != 1:
        raise ValueError(f"workflow world needs exactly one role in the recipe's `policies`, got {sorted(roles)}")


def check_settings(
    *,
    max_turns: int = MAX_TURNS,
    max_calls: int = MAX_CALLS,
    step_limit_s: float = STEP_LIMIT_S,
    observation_chars: int = OBSERVATION_CHARS,
    calls: str = AUTO,
) -> None:
    """Raise ValueError for a setting of the workflow out of its range."""
    if not (min(max_turns, max_calls, observation_chars) >= 1 and step_limit_s > 0 and calls in CALLS):
        raise ValueError(
            "workflow world: max_turns, max_calls and observation_chars must be 1 or more, step_limit_s above 0, calls "
            f"one of {', '.join(CALLS)}; got {max_turns}, {max_calls}, {observation_chars}, {step_limit_s}, {calls!r}"
        )


def check_environment(environment: Environment) -> None:
    """Raise ValueError unless the environment has worlds."""
    if not has_world(environment):
        raise ValueError(
            f"workflow world needs an environment with the method act or open_world; {environment.name} has neither"
        )


def list_lacking_characters(_: Environment, alphabet: str) -> str:
    """Return the newline after an observation if an alphabet lacks it."""
    return "" if "\n" in alphabet else "\n"


async def world(  # noqa: PLR0913 - the settings by name
    problem: Problem,
    env: Environment,
    actors: Mapping[str, Actor],
    *,
    max_turns: int = MAX_TURNS,
    max_calls: int = MAX_CALLS,
    step_limit_s: float = STEP_LIMIT_S,
    observation_chars: int = OBSERVATION_CHARS,
    calls: str = AUTO,
) -> Episode:
    """Play turns until the world is done, `max_turns` answers, or the context's end. The rewards of all actions add up.

    Args:
        problem: The problem.
        env: An environment with `act` or `open_world` (envs/worlds/contract.py).
        actors: One actor, whatever its role.
        max_turns: Most answers.
        max_calls: Most calls of one answer that are carried out.
        step_limit_s: Seconds that an action may take; a later one fails the episode.
        observation_chars: Most characters of an observation.
        calls: The form of actions with schemas: `hermes`, `short`, or `auto`.

    Raises WorldFailed and OutOfTime, the errors of the world's own code, and those of one that is away.
    """
    check_roles(actors)
    check_environment(env)
    [(role, actor)] = actors.items()
    limits, counts, reward = Limits(step_limit_s, observation_chars, max_calls), Counter[str](), 0.0
    with isolate(env) as isolated:
        opened = await open_world(isolated, problem, step_limit_s)
        try:
            known = list_actions(opened)
            form = choose_form(calls, actor, known, problem) if known else ""
            first = fit_to_policy(build_outcome("", opened.observation, "", limits), actor)
            counts["cut_outputs"] += first.is_cut
            chat = Chat(
                actor,
                role,
                build_prompt(problem.prompt, first.text),
                tools=[tool.schema for tool in known] if form == HERMES else (),
                template_arguments=problem.template_arguments,
            )
            while counts["turns"] < max_turns and not counts["done"] and len((made := await chat.generate()).ids):
                carried = await carry_out(_read_actions(chat, made, form, known), opened, known, limits)
                outcomes = [fit_to_policy(one, actor) for one in carried.outcomes]
                counts.update({"turns": 1, "actions": len(carried.steps), "done": int(carried.is_done)})
                counts["cut_outputs"] += sum(one.is_cut for one in outcomes)
                counts.update(one.kind for one in outcomes if one.kind)
                if carried.reward is not None:
                    reward += carried.reward
                    chat.reward_answer(carried.reward)
                chat.add(*build_messages(form, outcomes))
        finally:
            await asyncio.shield(_close(opened))
    return {role: RoleTrajectory(reward, chat.sequences(), {name: float(counts[name]) for name in PARTS})}


async def _close(opened: World) -> None:
    await opened.close()


def _read_actions(
    chat: Chat, made: Generation, form: str, known: Sequence[Tool]
) -> Sequence[ToolCall | InvalidToolCall]:
    """Return the actions of the newest answer."""
    if known:
        return parse_calls(chat, made, form, known)
    return [InvalidToolCall(CUT, "") if made.finish_reason == "length" else read_text(chat.text)]
