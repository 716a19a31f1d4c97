"""Plays the commands of perfect policies in boxes, to show that tasks can be solved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.envs.contract import Problem
from headrace.envs.terminal.commands import Limits, run_command
from headrace.envs.tools.solutions import SolutionPlayed, TurnPlayed
from headrace.infra.own_frames import describe_with_location


async def play_and_grade(
    environment: Any, problem: Problem, commands: Sequence[str], limits: Limits
) -> tuple[list[TurnPlayed], float]:
    """Run commands in a box; return what they printed, and the reward. Raises what the environment raises."""
    opened = await environment.open_terminal(problem, with_solution=bool(commands))
    try:
        turns = []
        for command in commands:
            seen = await run_command(opened, command, limits, opened.time_s)
            turns.append(TurnPlayed(command, (seen.text,)))
        return turns, (await environment.grade(problem, opened)).reward
    finally:
        await opened.box.stop()


async def play_commands(environment: Any, problem: Problem, limits: Limits) -> SolutionPlayed:
    """Run the commands that solve a problem, and grade; whatever is wrong is in the result."""
    turns: list[TurnPlayed] = []
    reward, fault = 0.0, ""
    try:
        turns, reward = await play_and_grade(environment, problem, environment.list_commands(problem), limits)
        fault = "" if reward >= 1 else f"its commands get a reward of {reward:g}, not 1"
    except Exception as error:  # noqa: BLE001 - the environment's own code may raise anything
        fault = describe_with_location(error, with_type=True)
    return SolutionPlayed(problem.task_id, tuple(turns), reward, fault)
