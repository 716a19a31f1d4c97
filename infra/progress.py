"""How far long work is, shown on standard error: standard output is the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SHOW_EVERY_S = 10.0

ReportProgress = Callable[[int, int], None]
"""Takes what is done, and of how much."""


@contextmanager
def open_progress(what: str, console: Console | None = None) -> Iterator[ReportProgress]:
    """Open a way to show how far the work is: a bar on a terminal, which goes away; elsewhere a line now and then."""
    out = console or Console(stderr=True)
    if out.is_terminal:
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=out, transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    shown = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal shown
        if time.monotonic() - shown >= SHOW_EVERY_S:
            shown = time.monotonic()
            out.print(f"{what}: {done} of {total}", highlight=False)

    yield report
