"""`headrace offline`: commands for an archive or a folder of weights, which need no run and no servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.app.cli.options import JsonOption, SetOption, VariantChoice, log_quietly, print_answer
from headrace.infra.errors import UsageError

app = typer.Typer(
    help="Curate, train, evaluate, or run a whole recipe over an archive: no run, no servers.",
    rich_markup_mode="rich",
)

COMMAND_NAME = "offline"

ArchiveOption = Annotated[str, typer.Option("--from", metavar="ARCHIVE", help="What `headrace archive` made.")]


@app.command()
def curate(
    source: ArchiveOption,
    out: Annotated[Path, typer.Option(metavar="DIR", help="New archive to write.")],
    policy: Annotated[str | None, typer.Option(help="Policy to curate for; default: all.")] = None,
    variant: VariantChoice = None,
    chain: Annotated[Path | None, typer.Option(metavar="CHAIN.toml", help="Chain to use instead of the run's.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Put archived trajectories through a chain of data algorithms, and archive the groups that it keeps.

    Without --chain, the result is byte for byte what the run's curators wrote.

    Example: [bold]headrace offline curate --from sums.archive --chain chain.toml --out tried.archive[/]
    """
    if chain and variant:
        raise UsageError("give --variant NAME (the chain of a shadow) or --chain FILE (another chain), not both")
    from headrace.app.views.offline_page import offline_page
    from headrace.ops.offline.offline_curator import curate_offline

    log_quietly()
    print_answer(curate_offline(source, policy, chain, out, variant), offline_page, as_json=as_json)


@app.command()
def train(  # noqa: PLR0913, PLR0917 - options, each given by its name
    source: ArchiveOption,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="New folder for the last weights and the result of each batch.")
    ],
    policy: Annotated[str | None, typer.Option(help="Policy to train; default: the only one.")] = None,
    sets: SetOption = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Last version to train; default: trainer.steps of the recipe.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="Archive or folder of weights to start from; default: oldest checkpoint."),
    ] = None,
    batches: Annotated[
        bool, typer.Option("--batches", help="Train on the run's recorded batches and compare hashes.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train on archived curated groups, with changed settings, into a folder that transformers can load.

    Example: [bold]headrace offline train --from sums.archive --out tried --set trainer.learning_rate=1e-4[/]
    """
    from headrace.infra.archive.reading import Archive as OpenedArchive
    from headrace.infra.progress import open_progress

    log_quietly()
    OpenedArchive(source)  # a missing archive is reported before torch is loaded
    from headrace.app.views.offline_page import offline_training_page
    from headrace.ops.offline.offline_trainer import TrainingRequest, train_offline

    request = TrainingRequest(policy, tuple(sets or ()), steps, start, batches)
    with open_progress("versions trained") as tell:
        found = train_offline(source, out, request, tell)
    print_answer(found, offline_training_page, as_json=as_json)


@app.command()
def evaluate(
    weights: Annotated[
        list[str],
        typer.Option(metavar="[POLICY=]FOLDER", help="Weights in Hugging Face layout. Repeatable."),
    ],
    recipe: Annotated[str, typer.Option(help="Recipe that gives the held-out problems.")],
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Play a recipe's held-out problems with weights in folders, and compute avg@k and pass@k.

    Example: [bold]headrace offline evaluate --recipe arithmetic --weights exported-model[/]
    """
    from headrace.app.views.tables import evaluation_table
    from headrace.infra.recipe.recipe_file import load_recipe
    from headrace.ops.offline.held_out import evaluate as play_held_out
    from headrace.ops.offline.held_out import parse_weight_folders

    log_quietly()
    loaded = load_recipe(recipe, sets or ())
    print_answer(play_held_out(loaded, parse_weight_folders(loaded, weights)), evaluation_table, as_json=as_json)


@app.command()
def up(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe by name, or the path of a TOML file.")],
    source: ArchiveOption,
    sets: SetOption = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Data folder.", show_default=".headrace/<run>-offline")
    ] = None,
    summary: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the summary there, as JSON.")] = None,
    _plain: Annotated[bool, typer.Option("--plain", hidden=True)] = False,
) -> None:
    """Run a recipe over archived trajectories. Give the same command again to resume.

    The recipe's chain filters the trajectories, its trainer trains on what the chain keeps, and the versions are
    evaluated on held-out problems.

    Example: [bold]headrace offline up efficient-data/ds --from sums.archive[/]
    """
    from headrace.app.views.offline_page import run_page
    from headrace.infra.embedded.data_folder import data_folder_of
    from headrace.infra.recipe.recipe_file import load_recipe
    from headrace.ops.offline.offline_run import OfflineRequest, run_offline
    from headrace.ops.summary_file import write_summary

    loaded = load_recipe(recipe, sets or ())
    folder = data_folder_of(f"{loaded.name}-offline", data).root
    log_quietly()
    found = run_offline(OfflineRequest(loaded, source, folder, summary))
    print_answer(found, run_page, as_json=False)
    write_summary(summary, found)
