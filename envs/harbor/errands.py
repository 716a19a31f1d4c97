"""Errands in a shell: two or three commands, of which the order matters, for a policy that is small.

`swap a b` asks to exchange two files, `join a b c` to write two files into a third and to remove them, `copy a b` to
copy a file and make the copy executable, and `bare a b` to rename a file and leave an empty one behind. Each problem is
a Harbor task, which is made when it is played. The reward is the share of right files.

Worked examples show the commands of the oracle in any order: which ones an errand takes is imitated, and their order is
left to be found by reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from zlib import crc32

from headrace.envs.contract import Problem, Score, Split, WorkedExample
from headrace.envs.harbor.boxes import grade_task, open_task
from headrace.envs.harbor.task import HarborTask, read_task
from headrace.envs.harbor.writing import build_task, write_files
from headrace.envs.messages import as_messages
from headrace.envs.sandbox.kinds import check_boxes
from headrace.envs.terminal.commands import DONE, write_turns
from headrace.envs.terminal.contract import Terminal
from headrace.infra.errors import UsageError
from headrace.schemas.ids import derive_seed

NAMES = "abcdefghijkl"
COMMANDS = {
    "swap": ("mv {0} t", "mv {1} {0}", "mv t {1}"),
    "join": ("cat {0} {1}>{2}", "rm {0} {1}"),
    "copy": ("cp {0} {1}", "chmod +x {1}"),
    "bare": ("mv {0} {1}", "touch {0}"),
}
CHECKS = {
    "swap": ('"$(cat {0})" = {1}', '"$(cat {1})" = {0}', "! -e t"),
    "join": ('"$(tr -d "\\n" <{2})" = {0}{1}', "! -e {0}", "! -e {1}"),
    "copy": ('"$(cat {1})" = {0}', "-x {1}"),
    "bare": ('"$(cat {1})" = {0}', "-f {0} -a ! -s {0}"),
}
"""Tests of what is right afterwards; each given file holds its own name."""


SHARES: dict[Split, range] = {"held_out": range(2), "warm_start": range(2, 5), "train": range(5, 8)}
"""Eighths of all problems, by a hash of the text."""


class Errands:
    """Problems without end, no one in two splits. Held-out problems are the same for every seed."""

    name = "errands"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def size(self, split: Split) -> int | None:  # noqa: ARG002 - the protocol's
        """Return None: the problems do not end."""
        return None

    def problem(self, split: Split, index: int) -> Problem:
        """Return a problem; its files are made when it is played."""
        draw = Random(f"errands {split} {0 if split == 'held_out' else self._seed} {index}")  # noqa: S311
        while True:
            kind = draw.choice(list(COMMANDS))
            text = " ".join([kind, *draw.sample(NAMES, 3 if kind == "join" else 2)])
            if crc32(text.encode()) % 8 in SHARES[split]:
                return Problem(text, f"{text}\n", tier=kind)

    def score(self, problem: Problem, text: str) -> Score:  # noqa: ARG002
        """Raise UsageError: a text cannot be scored."""
        raise UsageError('errands are played in a box: use workflow = "terminal"')

    def example(self, index: int) -> WorkedExample:
        """Return one answer, after the answers before it, in any order; no right command prints anything."""
        problem = self.problem("warm_start", index)
        commands = self.list_commands(problem)
        answers = [*Random(f"order {index}").sample(commands, len(commands)), DONE]  # noqa: S311
        turn = derive_seed("turn", index) % len(answers)
        return WorkedExample([*as_messages(problem.prompt), *write_turns(answers[:turn])], answers[turn])

    def list_commands(self, problem: Problem) -> Sequence[str]:
        """Return the commands of a perfect policy."""
        kind, *names = problem.text.split()
        return [command.format(*names) for command in COMMANDS[kind]]

    def check_machine(self) -> None:
        """Raise BoxUnavailable if this machine cannot play the errands."""
        check_boxes()

    async def open_terminal(self, problem: Problem, *, with_solution: bool = False) -> Terminal:  # noqa: ARG002
        """See `HasTerminal.open_terminal`."""
        with TemporaryDirectory() as folder:
            return await open_task(_make_task(problem, Path(folder)))

    async def grade(self, problem: Problem, terminal: Terminal) -> Score:
        """See `HasTerminal.grade`."""
        with TemporaryDirectory() as folder:
            return await grade_task(_make_task(problem, Path(folder)), terminal.box)


def _make_task(problem: Problem, folder: Path) -> HarborTask:
    kind, *names = problem.text.split()
    given = names[: 1 if kind in ("copy", "bare") else 2]
    tests = [f"[ {check.format(*names)} ]" for check in CHECKS[kind]]
    write_files(folder / "task", build_task(kind, {name: f"{name}\n" for name in given}, tests))
    return read_task(problem.task_id, folder / "task")
