"""A workflow in a shell: the policy writes commands, which are run in a box, until it says that it is done."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping

from headrace.envs.chat import Chat
from headrace.envs.contract import Actor, Environment, Episode, Problem, RoleTrajectory, Score
from headrace.envs.terminal.commands import (
    AUTO,
    CUT,
    DONE,
    FORMS,
    PLAIN,
    Limits,
    Seen,
    build_observation,
    build_prompt,
    choose_form,
    read_command,
    run_command,
)
from headrace.envs.terminal.contract import HasTerminal

PARTS = ("turns", "commands", "command_errors", "timeouts", "cut_outputs")


def check_roles(roles: Collection[str]) -> None:
    """Raise ValueError unless there is one role."""
    if len(roles) != 1:
        raise ValueError(f"workflow terminal needs exactly one role in the recipe's `policies`, got {sorted(roles)}")


def check_settings(
    *, max_turns: int = 20, command_limit_s: float = 30.0, observation_chars: int = 4000, form: str = AUTO
) -> None:
    """Raise ValueError for a setting of the workflow out of its range."""
    if not (max_turns >= 1 and observation_chars >= 1 and command_limit_s > 0 and form in FORMS):
        raise ValueError(
            "workflow terminal: max_turns and observation_chars must be 1 or more, command_limit_s above 0, and form "
            f"one of {', '.join(FORMS)}; got {max_turns}, {observation_chars}, {command_limit_s} and {form!r}"
        )


def check_environment(environment: Environment) -> None:
    """Raise ValueError unless the environment opens boxes."""
    if not isinstance(environment, HasTerminal):
        raise ValueError(  # noqa: TRY004 - of the recipe
            f"workflow terminal needs an environment with the methods open_terminal and grade, such as harbor; "
            f"{environment.name} has not both"
        )


def list_lacking_characters(_: Environment, alphabet: str) -> str:
    """Return the characters of `done`, and of a newline after a command's output, that an alphabet lacks."""
    return "".join(sorted({*DONE, "\n"} - set(alphabet)))


async def terminal(  # noqa: PLR0913 - the settings by name
    problem: Problem,
    env: Environment,
    actors: Mapping[str, Actor],
    *,
    max_turns: int = 20,
    command_limit_s: float = 30.0,
    observation_chars: int = 4000,
    form: str = AUTO,
) -> Episode:
    """Play turns until an answer without a command, `max_turns` answers, or the end of time or context; then grade.

    Args:
        problem: The problem.
        env: An environment with the methods of `HasTerminal`.
        actors: One actor, whatever its role.
        max_turns: Most answers.
        command_limit_s: Seconds that a command may take.
        observation_chars: Most characters of what a command printed.
        form: How commands are written: `block`, `plain`, or `auto`.

    Raises BoxUnavailable and BoxFailed, which say nothing about the policy, and the errors of a broken task.
    """
    check_roles(actors)
    check_environment(env)
    assert isinstance(env, HasTerminal)  # noqa: S101 - for the types
    [(role, actor)] = actors.items()
    form, limits, counts = choose_form(form, actor), Limits(command_limit_s, observation_chars), Counter[str]()
    chat = Chat(actor, role, build_prompt(problem.prompt, form), template_arguments=problem.template_arguments)
    opened = await env.open_terminal(problem)
    left_s = opened.time_s
    try:
        while counts["turns"] < max_turns and left_s > 0 and len((made := await chat.generate()).ids):
            counts["turns"] += 1
            command = read_command(chat.text, form)
            if made.finish_reason == "length" and (form == PLAIN or not command):
                seen = Seen(CUT, "command_errors")
            elif command:
                counts["commands"] += 1
                seen = await run_command(opened, command, limits, left_s)
                left_s -= seen.wall_s
            else:
                break
            message, is_cut = build_observation(seen, form, actor)
            counts.update({seen.kind: 1, "cut_outputs": int(is_cut)})
            chat.add(message)
        score: Score = await env.grade(problem, opened)
    finally:
        await asyncio.shield(opened.box.stop())
    parts = {**{name: float(counts[name]) for name in PARTS}, **score.parts}
    return {role: RoleTrajectory(score.reward, chat.sequences(), parts)}
