"""Checks tasks before they are trained on: the solution of each must get reward 1, and doing nothing must not."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from headrace.envs.harbor.environment import Harbor
from headrace.envs.harbor.task import find_tasks
from headrace.envs.sandbox.kinds import check_boxes
from headrace.envs.terminal.commands import Limits
from headrace.envs.terminal.solutions import play_and_grade
from headrace.infra.errors import HeadraceError, UsageError


@dataclass(slots=True)
class TaskChecked:
    """What was found about a task."""

    task: str
    solution: float | None = None
    """Reward of its solution; None if it got none."""
    nothing: float | None = None
    """Reward for doing nothing."""
    seconds: float = 0.0
    fault: str = ""
    """What is wrong; empty for a right task."""


async def check_tasks(path: Path, at_once: int) -> list[TaskChecked]:
    """Check all tasks of a folder (an absolute path). Raises BoxUnavailable, and UsageError for no tasks."""
    check_boxes()
    if not (folders := find_tasks(path)):
        raise UsageError(f"{path} has no task: no folder with a task.toml")
    turns = asyncio.Semaphore(at_once)

    async def check(checked: TaskChecked, folder: Path) -> TaskChecked:
        async with turns:
            begin = time.monotonic()
            try:
                await _check_task(checked, folder)
            except HeadraceError as error:
                checked.fault = checked.fault or str(error)
            checked.seconds = round(time.monotonic() - begin, 2)
            return checked

    return list(await asyncio.gather(*(check(TaskChecked(name), folder) for name, folder in folders.items())))


async def _check_task(checked: TaskChecked, folder: Path) -> None:
    harbor = await asyncio.to_thread(Harbor, 0, str(folder), 0.0)
    limits = Limits(command_limit_s=float("inf"))
    problem = harbor.problem("train", 0)
    if commands := harbor.list_commands(problem):
        turns, checked.solution = await play_and_grade(harbor, problem, commands, limits)
        if checked.solution != 1:
            printed = " ".join(turns[0].results[0].split())[-200:]
            checked.fault = f"its solution gets a reward of {checked.solution:g}, not 1; it printed: {printed}"
    else:
        checked.fault = "it has no solution/solve.sh"
    _, checked.nothing = await play_and_grade(harbor, problem, (), limits)
    if checked.nothing >= 1:
        checked.fault = checked.fault or f"doing nothing gets a reward of {checked.nothing:g}"
