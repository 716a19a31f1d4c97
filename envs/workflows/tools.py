"""A workflow with tools: the policy answers and calls the environment's functions, until an answer without a call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from headrace.envs.chat import Chat
from headrace.envs.contract import Actor, Environment, Episode, Problem, RoleTrajectory
from headrace.envs.isolation import isolate
from headrace.envs.tool_calls import InvalidToolCall, ToolCall
from headrace.envs.tools.forms import AUTO, CALLS, HERMES, choose_form, list_lacking
from headrace.envs.tools.functions import read_tools
from headrace.envs.tools.outcomes import Limits, Outcome, answer_calls
from headrace.envs.tools.turns import Budget, Tally, play_turns


def check_roles(roles: Collection[str]) -> None:
    """Raise ValueError unless there is one role."""
    if len(roles) != 1:
        raise ValueError(f"workflow tools needs exactly one role in the recipe's `policies`, got {sorted(roles)}")


def check_settings(
    *, max_turns: int = 8, call_limit_s: float = 10.0, observation_chars: int = 4000, calls: str = AUTO
) -> None:
    """Raise ValueError for a setting of the workflow out of its range."""
    for name, value in (("max_turns", max_turns), ("observation_chars", observation_chars)):
        if value < 1:
            raise ValueError(f"workflow tools: {name} must be 1 or more, got {value}")
    if not call_limit_s > 0:
        raise ValueError(f"workflow tools: call_limit_s must be above 0, got {call_limit_s}")
    if calls not in CALLS:
        raise ValueError(f"workflow tools: calls must be one of {', '.join(CALLS)}; got {calls!r}")


def check_environment(environment: Environment) -> None:
    """Raise ValueError unless the environment lists tools that a policy can call."""
    read_tools(environment)


def list_lacking_characters(environment: Environment, alphabet: str) -> str:
    """Return the characters of calls that an alphabet lacks; such a policy has no chat template."""
    return list_lacking(alphabet, read_tools(environment))


async def tools(  # noqa: PLR0913 - the settings by name
    problem: Problem,
    env: Environment,
    actors: Mapping[str, Actor],
    *,
    max_turns: int = 8,
    call_limit_s: float = 10.0,
    observation_chars: int = 4000,
    calls: str = AUTO,
) -> Episode:
    """Play turns until an answer without a call, `max_turns` answers, or the context's end; score the last answer.

    Args:
        problem: The problem.
        env: An environment with functions in `tools`.
        actors: One actor, whatever its role.
        max_turns: Most answers. The calls of the last one are not run.
        call_limit_s: Seconds that a call may take.
        observation_chars: Most characters of a result.
        calls: The form of calls: `hermes`, `short`, or `auto`.

    Raises ValueError if the recipe has several roles or the problem has schemas of tools, and the errors of a tool that
    cannot reach its server.
    """
    check_roles(actors)
    if problem.tools:
        raise ValueError(
            "the workflow tools reads no Problem.tools: list the functions in the environment's `tools`, or write a "
            "workflow of your own"
        )
    [(role, actor)] = actors.items()
    known, limits, tally = read_tools(env), Limits(call_limit_s, observation_chars), Tally()
    form = choose_form(calls, actor, known, problem)
    schemas = [tool.schema for tool in known] if form == HERMES else ()
    chat = Chat(actor, role, problem.prompt, tools=schemas, template_arguments=problem.template_arguments)

    with isolate(env) as isolated:

        async def answer(asked: Sequence[ToolCall | InvalidToolCall]) -> Sequence[Outcome]:
            return await answer_calls(asked, known, isolated, problem, limits)

        await play_turns(
            chat,
            actor,
            form,
            known,
            answer,
            tally=tally,
            max_turns=max_turns,
            budget=Budget(),
            score_turn=partial(isolated.score_turn, problem),
        )
        score = await isolated.score_in_child(problem, chat.text)
    parts = {**tally.list_parts(), **score.parts}
    return {role: RoleTrajectory(score.reward, chat.sequences(), parts, tally.errors)}
