"""Plays Harbor tasks in boxes: the agent's, and the tests' own, which the agent never touched."""

from __future__ import annotations

import json
import math

from headrace.envs.contract import Score
from headrace.envs.harbor.task import HarborTask
from headrace.envs.sandbox.contract import Box, Result
from headrace.envs.sandbox.grading import Graded, grade_in_fresh_box
from headrace.envs.sandbox.kinds import OWN, make_box
from headrace.envs.terminal.contract import Terminal
from headrace.infra.errors import EnvironmentBroken

SOLUTION = "/solution"
SOLVE = f"BASH_XTRACEFD=9 bash -x {SOLUTION}/solve.sh 9>&2"
"""Runs a solution, and shows its commands beside what it writes to stderr."""
RUN_TESTS = "mkdir -p /logs/verifier && exec bash /tests/test.sh"
REWARD_JSON, REWARD_TEXT = "verifier/reward.json", "verifier/reward.txt"


class TaskFailed(EnvironmentBroken):
    """A task is broken: a line of its Dockerfile fails, or its tests give no reward. It says nothing of the agent."""


async def open_task(task: HarborTask, *, with_solution: bool = False, kind: str = OWN) -> Terminal:
    """Start a box, and replay the Dockerfile in it. Raises TaskFailed, BoxFailed and BoxUnavailable."""
    time_s = task.settings.agent.timeout_sec
    folders, env = task.image.folders, task.env
    if with_solution:
        folders, env = [*folders, SOLUTION], {**env, **task.settings.solution.env}
    box = make_box(kind, hosts=task.list_hosts("agent"), limits=task.build_limits(time_s), folders=folders, env=env)
    await box.start()
    try:
        await _replay(task, box)
        if with_solution:
            await box.upload(task.folder / "solution", SOLUTION)
    except BaseException:
        await box.stop()
        raise
    return Terminal(box, task.image.folder, time_s)


async def _replay(task: HarborTask, box: Box) -> None:
    for step in task.image.steps:
        for source, target in step.copies:
            await box.upload(source, target)
        if step.command and (done := await box.exec(step.command, cwd=step.folder)).return_code:
            folders = ", ".join(task.image.folders)
            raise TaskFailed(f"{step.where} fails ({describe_end(done)}); a box can write to its home and to {folders}")


async def grade_task(task: HarborTask, box: Box, kind: str = OWN) -> Score:
    """Run the tests in a new box, on copies of the folders of WORKDIR and COPY, and return their reward.

    As in Harbor, the exit code of the tests does not count, and tests that write no reward are an error. What cannot
    be copied is the agent's fault: reward 0, with a part `refused`. Raises TaskFailed, BoxFailed and BoxUnavailable.
    """
    wanted = task.settings.verifier
    graded = await grade_in_fresh_box(
        box,
        results=task.image.folders,
        tests=task.folder / "tests",
        command=RUN_TESTS,
        limits=task.build_limits(wanted.timeout_sec),
        kind=kind,
        env={**task.env, **wanted.env},
        cwd=task.image.folder,
        hosts=task.list_hosts("verifier"),
    )
    if graded.result is None:
        return Score(0.0, {"refused": 1.0})
    try:
        return read_reward(graded, graded.result)
    except TaskFailed as error:
        raise TaskFailed(f"the tests of task {task.name} give no reward: {error}") from None


def read_reward(graded: Graded, result: Result) -> Score:
    """Return the reward of reward.json, else of reward.txt; the former's other numbers are parts. Raises TaskFailed."""
    if result.timed_out:
        raise TaskFailed("they took longer than verifier.timeout_sec")
    written = graded.logs.get(REWARD_JSON), graded.logs.get(REWARD_TEXT)
    try:
        read = json.loads(written[0] or b"{}")
        found = {key: float(one) for key, one in read.items() if type(one) in (int, float)}
        if "reward" not in found and written[1]:
            found["reward"] = float(written[1])
    except (ValueError, OverflowError, AttributeError, RecursionError):
        raise TaskFailed(f"they wrote {written[0] or written[1]!r:.60}, which has no number") from None
    if "reward" not in found and written[0]:
        raise TaskFailed(
            f"/logs/{REWARD_JSON} is {written[0]!r:.60}: it has no number under the key `reward`, and there is no "
            f"/logs/{REWARD_TEXT}"
        )
    if "reward" not in found:
        raise TaskFailed(f"they wrote nothing to /logs/{REWARD_TEXT} ({describe_end(result)})")
    if not all(map(math.isfinite, found.values())):
        raise TaskFailed(f"{found} is not finite")
    return Score(found.pop("reward"), found)


def describe_end(result: Result) -> str:
    """Return how a command ended, and the last line that it wrote."""
    lines = f"{result.stdout}\n{result.stderr}".strip().splitlines()
    code = "out of time" if result.timed_out else f"exit code {result.return_code}"
    return f"{code}: {lines[-1]:.160}" if lines else code
