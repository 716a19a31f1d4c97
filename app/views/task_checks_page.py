"""The table of `headrace check-tasks`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table

from headrace.app.views.safe_text import Text
from headrace.infra.inflection import inflect

if TYPE_CHECKING:
    from headrace.envs.harbor.checking import TaskChecked


def task_checks_page(checked: Sequence[TaskChecked]) -> RenderableType:
    """Return a row for each task, and how many are right."""
    table = Table(box=None, padding=(0, 1), header_style="dim", pad_edge=False)
    table.add_column("task", no_wrap=True)
    for name in ("solution", "nothing", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("verdict", overflow="fold")
    for one in checked:
        rewards = ["-" if reward is None else f"{reward:g}" for reward in (one.solution, one.nothing)]
        verdict = Text(f"wrong: {one.fault}", style="red") if one.fault else Text("right", style="green")
        table.add_row(Text(one.task), *rewards, f"{one.seconds:.1f}", verdict)
    right = sum(not one.fault for one in checked)
    return Group(table, Text(f"{right} of {len(checked)} {inflect(len(checked), 'task')} right", style="bold"))
