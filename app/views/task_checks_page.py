"""The table of `headrace check-tasks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Column

from headrace.app.views.columns import make_columns
from headrace.app.views.safe_text import Text
from headrace.infra.inflection import inflect

if TYPE_CHECKING:
    from headrace.envs.harbor.checking import TaskChecked


def task_checks_page(checked: Sequence[TaskChecked]) -> RenderableType:
    """Return a row for each task, how many are right, and what is wrong, in lines that leave paths whole."""
    task = Column("task", no_wrap=True)
    table = make_columns(task, "solution", "nothing", "seconds", "verdict", right=slice(1, 4))
    for one in checked:
        rewards = ["-" if reward is None else f"{reward:g}" for reward in (one.solution, one.nothing)]
        verdict = Text("wrong", style="red") if one.fault else Text("right", style="green")
        table.add_row(Text(one.task), *rewards, f"{one.seconds:.1f}", verdict)
    wrong = [Text(f"{one.task}: {one.fault}", style="red", overflow="ignore") for one in checked if one.fault]
    right = len(checked) - len(wrong)
    return Group(table, *wrong, Text(f"{right} of {len(checked)} {inflect(len(checked), 'task')} right", style="bold"))
