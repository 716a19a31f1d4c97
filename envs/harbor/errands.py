"""Errands in a shell: two or three whole commands, of which the order matters, for a policy that is small.

A prompt has a name, which means nothing, and an errand: `kx swap` asks to exchange the files `a` and `b`. Each problem
is a Harbor task, which is made when it is played. The reward is the share of right files.

Worked examples show the commands of the oracle in any order: which ones an errand takes is imitated, and their order is
left to be found by reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from string import ascii_lowercase
from tempfile import TemporaryDirectory

from headrace.envs.contract import Problem, Score, Split, WorkedExample
from headrace.envs.harbor.boxes import grade_task, open_task
from headrace.envs.harbor.task import HarborTask, read_task
from headrace.envs.harbor.writing import build_task, write_files
from headrace.envs.messages import as_messages
from headrace.envs.sandbox.kinds import check_boxes
from headrace.envs.split_shares import is_of_split
from headrace.envs.terminal.commands import DONE, write_turns
from headrace.envs.terminal.contract import Terminal
from headrace.infra.errors import UsageError
from headrace.schemas.ids import derive_seed

COMMANDS = {
    "swap": ("mv a t", "mv b a", "mv t b"),
    "join": ("cat a b>c", "rm a b"),
    "copy": ("cp a c", "chmod +x c"),
    "bare": ("mv a c", "touch a"),
    "pack": ("mkdir d", "mv a b d"),
    "back": ("cp a c", "mv b a"),
    "tail": ("cat b>>a", "mv a c"),
}
CHECKS = {
    "swap": ('"$(cat a)" = b', '"$(cat b)" = a', "! -e t"),
    "join": ('"$(tr -d "\\n" <c)" = ab', "! -e a -a ! -e b"),
    "copy": ('"$(cat c)" = a', "-x c"),
    "bare": ('"$(cat c)" = a', "-f a -a ! -s a"),
    "pack": ("-f d/a", "-f d/b"),
    "back": ('"$(cat c)" = a', '"$(cat a)" = b', "! -e b"),
    "tail": ('"$(tr -d "\\n" <c)" = ab', "! -e a"),
}
"""Conditions of bash that are true afterwards; the given files `a` and `b` hold their own names."""


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
            text = f"{''.join(draw.choices(ascii_lowercase, k=2))} {kind}"
            if is_of_split(split, text):
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
        return COMMANDS[problem.tier]

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
    tests = [f"[ {check} ]" for check in CHECKS[problem.tier]]
    write_files(folder / "task", build_task(problem.tier, {"a": "a\n", "b": "b\n"}, tests))
    return read_task(problem.task_id, folder / "task")
