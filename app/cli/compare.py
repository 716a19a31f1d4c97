"""Running several recipes against each other: `headrace compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from headrace.app import workers
from headrace.app.cli.options import FAILED, JsonOption, answer, log_quietly, tell_written


def compare(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP.toml", help="A sweep file, or a shipped sweep by name.")],
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Data folder.", show_default=".headrace/<sweep>")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw the curves there, and write FILE.html with table and picture."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run variants of recipes over several seeds on one Kafka and one store, and compare what came of them.

    A line for every run on standard error, then a table: means over seeds and their 95 % intervals. The same command
    goes on where it stopped: runs that are done are not run again. Exit code 1 when a run failed; the others count.

    Example: [bold]headrace compare efficient-data --plot efficient-data.png[/]
    """
    from rich.console import Console

    from headrace.infra.atomic_files import write_atomically
    from headrace.infra.embedded.data_folder import HOME
    from headrace.infra.process.signals import INTERRUPTED
    from headrace.ops.compare.sweep import play
    from headrace.ops.compare.sweep_file import load_sweep

    log_quietly()
    asked, runs = load_sweep(sweep)
    if plot is not None:
        workers.find(workers.CHECK_PICTURE)(plot, ".png")
    folder = data or HOME / asked.name
    console = Console(stderr=True)

    def say(words: str) -> None:
        console.print(words, highlight=False, soft_wrap=True)

    try:
        results = play(asked, runs, folder, say)
    except KeyboardInterrupt:
        say(f"Stopped. The same command goes on with what is in {escape(str(folder))}.")
        raise typer.Exit(INTERRUPTED) from None
    found = workers.find(workers.COMPARE)(asked.name, asked.about, results)
    write_atomically(folder / "comparison.json", json.dumps(found, indent=1).encode())
    if plot is not None:
        tell_written(workers.find(workers.PLOT_COMPARISON)(found, plot))
    answer(found, workers.SHOW_COMPARISON, as_json=as_json)
    if any(run["summary"] is None for run in results.values()):
        raise typer.Exit(FAILED)
