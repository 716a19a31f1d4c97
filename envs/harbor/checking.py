"""Checks tasks before they are trained on: the solution of each must get reward 1, and doing nothing must not."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

from headrace.envs.harbor.boxes import SOLVE, describe_end, grade_task, open_task
from headrace.envs.harbor.task import HarborTask, find_tasks, read_task
from headrace.envs.sandbox.contract import Result
from headrace.envs.sandbox.kinds import check_boxes
from headrace.infra.errors import HeadraceError, UsageError


@dataclass(frozen=True, slots=True)
class TaskChecked:
    """What was found about a task."""

    task: str
    solution: float | None
    """Reward of its solution; None if it got none."""
    nothing: float | None
    """Reward for doing nothing."""
    seconds: float
    fault: str
    """What is wrong; empty for a right task."""


async def check_tasks(path: Path, at_once: int) -> list[TaskChecked]:
    """Check all tasks of a folder, a few at a time. Raises BoxUnavailable, and UsageError for no tasks."""
    check_boxes()
    if not (folders := find_tasks(path)):
        raise UsageError(f"{path}: there is no task, which is a folder with a task.toml, in it")
    turns = asyncio.Semaphore(at_once)

    async def check(name: str, folder: Path) -> TaskChecked:
        async with turns:
            return await _check_task(name, folder)

    return list(await asyncio.gather(*(check(name, folder) for name, folder in folders.items())))


async def _check_task(name: str, folder: Path) -> TaskChecked:
    begin, rewards, fault = time.monotonic(), dict[bool, float](), ""
    try:
        task = read_task(name, folder)
        if not (task.solution / "solve.sh").is_file():
            fault = "it has no solution/solve.sh"
        else:
            rewards[True], done = await _play(task, with_solution=True)
            if rewards[True] != 1:
                fault = f"its solution gets a reward of {rewards[True]:g}, not 1 ({describe_end(done)})"
        rewards[False], _ = await _play(task, with_solution=False)
        if rewards[False] >= 1:
            fault = fault or f"doing nothing gets a reward of {rewards[False]:g}"
    except HeadraceError as error:
        fault = fault or str(error)
    return TaskChecked(name, rewards.get(True), rewards.get(False), round(time.monotonic() - begin, 2), fault)


async def _play(task: HarborTask, *, with_solution: bool) -> tuple[float, Result]:
    opened = await open_task(task, with_solution=with_solution)
    try:
        done = await opened.box.exec(SOLVE if with_solution else "true", cwd=opened.folder)
        return (await grade_task(task, opened.box)).reward, done
    finally:
        await opened.box.stop()
