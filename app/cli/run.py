"""Commands that make a run, change it, or make several: `headrace up`, `swap`, `compare`."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from headrace.app.cli.options import (
    FAILED,
    DataChoice,
    JsonOption,
    RunChoice,
    SetOption,
    answer,
    log_quietly,
    open_console,
    program_name,
    tell_written,
)
from headrace.infra.errors import UsageError


def up(  # noqa: PLR0913, PLR0917 - options, each given by its name
    recipe: Annotated[str, typer.Argument(help="A shipped recipe by name, or the path of a TOML file.")],
    sets: SetOption = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Data folder.", show_default=".headrace/<run>")
    ] = None,
    summary: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the summary there, as JSON.")] = None,
    new_recipe: Annotated[
        bool, typer.Option("--new-recipe", help="Record a changed recipe as a revision of a run that is there.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of the live page.")] = False,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="ARCHIVE", help="Play nothing: learn from what an archive holds. No servers."),
    ] = None,
) -> None:
    """Run a recipe to its end: servers, components, live page, summary. The same command goes on where it stopped.

    Example: [bold]headrace up arithmetic --set trainer.steps=40 --summary summary.json[/]

    With --from, the archived trajectories go through the recipe's chain, its trainer learns from what is kept, and
    versions are played on held-out problems.

    On the page,
      [bold]rolling[/], [bold]behind[/]: a worker plays; its weights are too old to play with
      [bold]staleness[/]: versions by which tokens are older than the weights they train
      [bold]log-probability gap[/]: of engine and trainer, on tokens of the same weights
      [bold]zero_variance[/]: all members had one reward, so nothing is learnt
      [bold]run_end[/]: a group that was not trained on before the run was over
      a worker's groups: all that it finished, evaluations too
      a dot in the chart: a version of which no group came
    """
    from headrace.app.launcher.launcher import Order
    from headrace.app.launcher.launcher import up as bring_up
    from headrace.infra.embedded.data_folder import data_folder_of
    from headrace.infra.recipe.recipe_file import load_recipe

    resolved = load_recipe(recipe, sets or ())
    folder = data_folder_of(f"{resolved.name}-offline" if source else resolved.name, data).root
    if source is not None:
        from headrace.app.views.offline_training_page import run_page
        from headrace.ops.offline.offline_run import OfflineOrder, run_offline

        if new_recipe:
            raise UsageError("--from begins an experiment of its own: --new-recipe is for runs")
        log_quietly()
        answer(run_offline(OfflineOrder(resolved, source, folder, summary)), run_page, as_json=False)
        return
    program = program_name()
    again = f"{program} {shlex.join(word for word in sys.argv[1:] if word != '--new-recipe')}"
    order = Order(resolved, folder, summary, new_recipe, plain, program, again)
    raise typer.Exit(bring_up(order, open_console()))


def swap(
    chain: Annotated[Path, typer.Argument(metavar="CHAIN.toml", help=r"\[\[curate.chain]] tables, and nothing else.")],
    run: RunChoice = None,
    data: DataChoice = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the chain, and change nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Give a run another chain of data algorithms while it goes on, as the next revision of its recipe.

    Every task issued from then on goes through the new chain; those issued before go through the old one, which ends
    after the last of them. Nothing stops, is lost or is trained twice. A run that rests goes on with the new chain.

    A rule of your own must be importable wherever a curator runs: the groups that were issued under it wait for it.

    Example: [bold]headrace swap --run kafka://127.0.0.1:9092/arithmetic new_chain.toml[/]
    """
    from headrace.app.views.tables import swap_lines
    from headrace.ops.opened_run import opened_run
    from headrace.ops.swap import swap as swap_chain

    log_quietly()
    with opened_run(run, data) as opened:
        answer(swap_chain(opened.run, chain, dry_run=dry_run), swap_lines, as_json=as_json)


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

    from headrace.app.views.comparison_page import comparison_page
    from headrace.infra.atomic_files import write_atomically
    from headrace.infra.embedded.data_folder import HOME
    from headrace.infra.process.signals import INTERRUPTED
    from headrace.ops.compare.comparison import compared
    from headrace.ops.compare.sweep import play
    from headrace.ops.compare.sweep_file import load_sweep

    log_quietly()
    asked, runs = load_sweep(sweep)
    if plot is not None:
        from headrace.app.views.pictures import check_picture

        check_picture(plot, ".png")
    folder = data or HOME / asked.name
    console = Console(stderr=True)

    def say(words: str) -> None:
        console.print(words, highlight=False, soft_wrap=True)

    try:
        results = play(asked, runs, folder, say)
    except KeyboardInterrupt:
        say(f"Stopped. The same command goes on with what is in {escape(str(folder))}.")
        raise typer.Exit(INTERRUPTED) from None
    found = compared(asked.name, asked.about, results)
    write_atomically(folder / "comparison.json", json.dumps(found, indent=1).encode())
    if plot is not None:
        from headrace.app.views.comparison_plot import plot as draw

        tell_written(draw(found, plot))
    answer(found, comparison_page, as_json=as_json)
    if any(run["summary"] is None for run in results.values()):
        raise typer.Exit(FAILED)
