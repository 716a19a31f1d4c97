"""Commands about what a run plays and learns from: `headrace discards`, `swap`, `evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.app import workers
from headrace.app.cli.options import (
    RUN_ADDRESS,
    DataChoice,
    JsonOption,
    RunChoice,
    SetOption,
    VariantChoice,
    answer,
    log_quietly,
    tell_written,
)
from headrace.infra.errors import UsageError


def discards(
    policy: Annotated[str | None, typer.Option("--policy", help="Which policy; all if not given.")] = None,
    variant: VariantChoice = None,
    run: RunChoice = None,
    data: DataChoice = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw lengths, rewards and ages there: .png, .svg or .pdf.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say which groups were never trained on and why, how long, good and old they were, and what bias that is.

    Lengths are generated tokens, a mean over a group's members; "of trained" compares them with those of trained
    groups, with a 95 % interval: a bias is what is surely more than 5 % from 1. The age is in versions: between a
    group's oldest token and the newest weights.

    Example: [bold]headrace discards --data .headrace/arithmetic --plot discards.png[/]
    """
    from headrace.ops.opened_run import opened_run

    log_quietly()
    if plot is not None:
        workers.find(workers.CHECK_PICTURE)(plot, ".png", ".svg", ".pdf")
    with opened_run(run, data) as opened:
        found = workers.find(workers.DISCARDS)(opened.run, opened.run.line(policy, variant))
    if plot is not None:
        tell_written(workers.find(workers.PLOT_DISCARDS)(found, plot))
    answer(found, workers.SHOW_DISCARDS, as_json=as_json)


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
    from headrace.ops.opened_run import opened_run
    from headrace.ops.swap import swap as swap_chain

    log_quietly()
    with opened_run(run, data) as opened:
        answer(swap_chain(opened.run, chain, dry_run=dry_run), workers.SHOW_SWAP, as_json=as_json)


def evaluate(
    run: Annotated[str | None, RUN_ADDRESS] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(metavar="[POLICY=]FOLDER", help="Instead of a run: weights in Hugging Face layout. Repeatable."),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="With --weights: whose held-out problems are played.")] = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fold the answers to held-out problems into avg@k and pass@k per version; or play them with weights in a folder.

    Example: [bold]headrace evaluate --run kafka://127.0.0.1:9092/arithmetic[/]

    Example: [bold]headrace evaluate --recipe arithmetic --weights exported-model[/]
    """
    if weights is None:
        if run is None or recipe or sets or as_json:
            raise UsageError("give --run ADDRESS, or --weights FOLDER and --recipe NAME; --set and --json go with them")
        workers.find(workers.EVALUATE)(run)
        return
    if run or recipe is None:
        raise UsageError("--weights FOLDER needs --recipe NAME, and no --run: no run is asked")
    from headrace.infra.recipe.recipe_file import load_recipe
    from headrace.ops.offline.held_out import evaluate as play_held_out
    from headrace.ops.offline.held_out import named_folders

    log_quietly()
    asked = load_recipe(recipe, sets or ())
    answer(play_held_out(asked, named_folders(asked, weights)), workers.SHOW_EVALUATION, as_json=as_json)
