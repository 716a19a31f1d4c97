"""What the workflow `terminal` asks of an environment: a box with a task in it, and a grade of what was done there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from headrace.envs.contract import Problem, Score
from headrace.envs.sandbox.contract import Box


@dataclass(frozen=True, slots=True)
class Terminal:
    """A box that runs. Whoever opened it stops it."""

    box: Box
    folder: str
    """Where each command begins."""
    time_s: float
    """Seconds that all commands may take together."""


@runtime_checkable
class HasTerminal(Protocol):
    """An environment whose problems are solved by commands in a box."""

    async def open_terminal(self, problem: Problem, *, with_solution: bool = False) -> Terminal:
        """Start a box with the files of a problem.

        `with_solution` adds the files that the commands of `list_commands` need; no policy may see them. Raises
        BoxUnavailable or BoxFailed, and other errors for a broken task.
        """

    async def grade(self, problem: Problem, terminal: Terminal) -> Score:
        """Score what was done in a box, by tests that nothing in this box could touch."""


@runtime_checkable
class GivesCommands(Protocol):
    """An environment that knows the commands of a perfect policy."""

    def list_commands(self, problem: Problem) -> Sequence[str]:
        """Return the commands in their order; empty if there are none."""
