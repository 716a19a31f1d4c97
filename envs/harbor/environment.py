"""An environment of Harbor tasks: a folder of task directories, as Terminal-Bench and others publish them."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

from headrace.envs.contract import Problem, Score, Split
from headrace.envs.harbor.boxes import SOLVE, grade_task, open_task
from headrace.envs.harbor.dockerfile import TaskRefused
from headrace.envs.harbor.task import HarborTask, find_tasks, read_task
from headrace.envs.sandbox.kinds import OWN, check_boxes, find_kind
from headrace.envs.sandbox.namespaces import SANDLOCK
from headrace.envs.terminal.contract import Terminal
from headrace.infra.errors import UsageError
from headrace.infra.recipe.named import check_kinds
from headrace.infra.recipe.recipe_paths import describe_places, find_path

MOST_SHOWN = 3
"""Refused tasks that an error names."""


class Harbor:
    """Tasks of a folder, for the workflow `terminal`.

    Args:
        seed: Not used.
        path: Folder of tasks, or of the folders `train` and `test`, whose tasks are for training and held out.
        held_out: Share of the other tasks that is held out, chosen by a hash of the name.
        box: Kind of the boxes, as in `make_box`.

    Raises TaskRefused for tasks that cannot be played here, and UsageError or ValueError for settings.
    """

    name = "harbor"

    def __init__(self, seed: int, path: str, held_out: float = 0.1, box: str = OWN) -> None:  # noqa: ARG002
        check_kinds("tasks", Harbor, {"path": path, "held_out": held_out, "box": box})
        find_kind(box)
        if not 0 <= held_out < 1:
            raise ValueError(f"held_out must be a share, 0 or more and below 1; got {held_out}")
        if not (folder := find_path(path)).is_dir():
            raise ValueError(f"path must be a folder of tasks, but {describe_places(path)}")
        self._tasks, self._box = _read_all(folder), box
        held = [name for name in self._tasks if _is_held_out(name, held_out)]
        self._names = {"held_out": held, "train": [name for name in self._tasks if name not in held], "warm_start": []}

    def size(self, split: Split) -> int | None:
        """Return the number of tasks."""
        return len(self._names[split])

    def problem(self, split: Split, index: int) -> Problem:
        """Return the instruction of a task; its files are read where it is played."""
        task = self._tasks[self._names[split][index]]
        return Problem(task.name, task.instruction, tier=str(task.settings.metadata.get("difficulty", "")))

    def score(self, problem: Problem, text: str) -> Score:  # noqa: ARG002
        """Raise UsageError: a text cannot be scored."""
        raise UsageError('tasks of Harbor are played in a box: use workflow = "terminal"')

    def check_machine(self) -> None:
        """Raise BoxUnavailable if this machine cannot play the tasks."""
        if ":" not in self._box:
            check_boxes(self._box)
        for task in self._tasks.values() if self._box == SANDLOCK else ():
            if task.list_hosts("agent") or task.list_hosts("verifier"):
                raise UsageError(f"task {task.name} allows hosts, and a box of sandlock reaches none")

    def list_commands(self, problem: Problem) -> Sequence[str]:
        """Return the command that runs the task's solution."""
        return [SOLVE] if (self._find(problem).folder / "solution" / "solve.sh").exists() else []

    async def open_terminal(self, problem: Problem, *, with_solution: bool = False) -> Terminal:
        """See `HasTerminal.open_terminal`."""
        return await open_task(self._find(problem), with_solution=with_solution, kind=self._box)

    async def grade(self, problem: Problem, terminal: Terminal) -> Score:
        """See `HasTerminal.grade`."""
        return await grade_task(self._find(problem), terminal.box, self._box)

    def _find(self, problem: Problem) -> HarborTask:
        if problem.task_id not in self._tasks:
            raise UsageError(f"this machine has no task {problem.task_id}: copy all tasks to it, to the recipe's path")
        return self._tasks[problem.task_id]


def _read_all(folder: Path) -> dict[str, HarborTask]:
    tasks, refused = dict[str, HarborTask](), list[str]()
    for name, each in find_tasks(folder).items():
        try:
            tasks[name] = read_task(name, each)
        except TaskRefused as error:
            refused.append(str(error))
    if len(refused) > 1:
        raise TaskRefused(
            f"{len(refused)} of {len(refused) + len(tasks)} tasks cannot be played: mend them, or move them away; "
            f"`headrace check-tasks {folder}` lists all. The first ones: {' | '.join(refused[:MOST_SHOWN])}"
        )
    if refused or not tasks:
        raise TaskRefused("".join(refused) or f"{folder} has no task: no folder with a task.toml")
    return tasks


def _is_held_out(name: str, share: float) -> bool:
    top, _, below = name.partition("/")
    if below and top in ("train", "test"):
        return top == "test"
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) < share * 2**64
