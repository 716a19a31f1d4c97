"""Shows the progress of long work on standard error, because standard output has the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SHOW_EVERY_S = 10.0

ReportProgress = Callable[[int, int], None]
"""Takes the done and the total amount."""


@contextmanager
def open_progress(what: str, console: Console | None = None) -> Iterator[ReportProgress]:
    """Open a progress display: a temporary bar on a terminal; elsewhere a line from time to time."""
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
