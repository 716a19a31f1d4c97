"""Plays Harbor tasks in boxes: the agent's, and the tests' own, which the agent never touched."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from headrace.envs.contract import Score
from headrace.envs.harbor.task import HarborTask
from headrace.envs.sandbox.contract import Box, Result
from headrace.envs.sandbox.grading import Graded, grade_in_fresh_box
from headrace.envs.sandbox.kinds import OWN, make_box
from headrace.envs.terminal.contract import Terminal
from headrace.infra.errors import HeadraceError

SOLUTION = "/solution"
SOLVE = f"bash {SOLUTION}/solve.sh"
RUN_TESTS = "mkdir -p /logs/verifier && exec bash /tests/test.sh"
REWARD_JSON, REWARD_TEXT = "verifier/reward.json", "verifier/reward.txt"


class TaskFailed(HeadraceError):
    """A task is broken: a line of its Dockerfile fails, or its tests give no reward. It says nothing of the agent."""


async def open_task(task: HarborTask, *, with_solution: bool = False, kind: str = OWN) -> Terminal:
    """Start a box, and replay the Dockerfile in it. Raises TaskFailed, BoxFailed and BoxUnavailable."""
    folders = [*task.image.folders, *([SOLUTION] if with_solution else [])]
    env = {**task.env, **(task.solution_env if with_solution else {})}
    box = make_box(kind, limits=task.limits, folders=folders, env=env)
    await box.start()
    try:
        await _replay(task, box)
        if with_solution and task.solution.is_dir():
            await box.upload(task.solution, SOLUTION)
    except BaseException:
        await box.stop()
        raise
    return Terminal(box, task.image.folder, task.limits.wall_s)


async def _replay(task: HarborTask, box: Box) -> None:
    for step in task.image.steps:
        for source, target in step.copies:
            await box.upload(source, target)
        if step.command:
            done = await box.exec(step.command, cwd=step.folder)
            if done.return_code:
                where = f"{step.where}: `{step.command:.60}`"
                folders = ", ".join(task.image.folders)
                raise TaskFailed(
                    f"{where} fails in a box ({describe_end(done)}), which can write only to {folders} and its home"
                )


async def grade_task(task: HarborTask, box: Box, kind: str = OWN) -> Score:
    """Run the tests in a new box, on copies of the folders of WORKDIR and COPY, and return their reward.

    As in Harbor, the exit code of the tests does not count, and tests that write no reward are an error. What cannot
    be copied is the agent's fault: reward 0, with a part `refused`. Raises TaskFailed, BoxFailed and BoxUnavailable.
    """
    graded = await grade_in_fresh_box(
        box,
        results=task.image.folders,
        tests=task.folder / "tests",
        command=RUN_TESTS,
        limits=task.test_limits,
        kind=kind,
        env=task.test_env,
        cwd=task.image.folder,
    )
    if graded.result is None:
        return Score(0.0, {"refused": 1.0})
    if graded.result.timed_out:
        raise TaskFailed(f"tests of task {task.name} took longer than verifier.timeout_sec, {task.test_limits.wall_s}")
    return read_reward(task.name, graded, graded.result)


def read_reward(name: str, graded: Graded, result: Result) -> Score:
    """Return the reward of reward.json, else of reward.txt; other numbers of the former are parts. Raises TaskFailed."""
    found: dict[str, float] = {}
    try:
        if (content := graded.logs.get(REWARD_JSON)) is not None:
            read = json.loads(content)
            if not isinstance(read, Mapping):
                raise TaskFailed(f"tests of task {name} wrote {content[:60]!r} to {REWARD_JSON}, not an object")
            found = {key: float(one) for key, one in read.items() if type(one) in (int, float)}
        if "reward" not in found and (content := graded.logs.get(REWARD_TEXT)) is not None:
            found["reward"] = float(content)
    except (ValueError, OverflowError):
        raise TaskFailed(f"tests of task {name} wrote {content!r:.60} as reward, not a number") from None
    if "reward" not in found:
        raise TaskFailed(f"tests of task {name} wrote no reward to /logs/{REWARD_TEXT} ({describe_end(result)})")
    if wrong := next((key for key, one in found.items() if not math.isfinite(one)), None):
        raise TaskFailed(f"tests of task {name} gave {wrong} = {found[wrong]}, not a finite number")
    return Score(found.pop("reward"), found)


def describe_end(result: Result) -> str:
    """Return how a command ended, and the last line that it wrote."""
    lines = f"{result.stdout}\n{result.stderr}".strip().splitlines()
    code = "it took too long" if result.timed_out else f"exit code {result.return_code}"
    return f"{code}: {lines[-1]:.160}" if lines else code
