"""Commands for the parts of a run, each its own process; some of them also work offline over an archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.app.cli.options import (
    RUN_ADDRESS,
    DataChoice,
    JsonOption,
    RunChoice,
    RunOption,
    SetOption,
    VariantChoice,
    answer,
    log_quietly,
)
from headrace.infra.errors import UsageError


def feed(run: RunOption) -> None:
    """Issue tasks at the pace of the trainers; one per run.

    Example: [bold]headrace feed --run kafka://127.0.0.1:9092/arithmetic[/]
    """
    from headrace.producers.feed.feeder import main

    main(run)


def rollout(
    run: RunOption,
    workflow: Annotated[str | None, typer.Option(help="Which workflow to play; the only one if not given.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of this worker; host and pid if not given.")] = None,
    region: Annotated[str, typer.Option(help="Region of this worker, as reported in its status.")] = "",
    concurrency: Annotated[int | None, typer.Option(min=1, help="Episodes at once, instead of the recipe's.")] = None,
) -> None:
    """Play tasks and produce trajectories; start as many as you like, any time, on any machine.

    Example: [bold]headrace rollout --run kafka://127.0.0.1:9092/arithmetic[/]
    """
    from headrace.producers.rollout.worker import main

    main(run, workflow, name, region, concurrency)


def curate(  # noqa: PLR0913, PLR0917 - options, each given by its name
    run: Annotated[str | None, RUN_ADDRESS] = None,
    policy: Annotated[
        str | None, typer.Option(help="Policy to curate for; default: the only one, with --from all policies.")
    ] = None,
    variant: VariantChoice = None,
    slot: Annotated[
        str | None, typer.Option(help="Supervisor slot; a restart with the same slot fences the old process.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="ARCHIVE", help="Instead of a run: what `headrace archive` made.")
    ] = None,
    chain: Annotated[
        Path | None, typer.Option(metavar="CHAIN.toml", help="With --from: another chain than the run's own.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="With --from: new archive to write.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Choose the groups to train on by the recipe's chain, in a run or offline over an archive.

    Example: [bold]headrace curate --run kafka://127.0.0.1:9092/arithmetic --policy solver[/]

    Example: [bold]headrace curate --from sums.archive --chain chain.toml --out tried.archive[/]
    """
    if source is None:
        if run is None or chain or out or as_json:
            raise UsageError("give --run ADDRESS, or --from ARCHIVE and --out DIR; --chain and --json go with --from")
        from headrace.consumers.curate.curator import main

        main(run, policy, slot, variant)
        return
    if run or slot or out is None:
        raise UsageError("--from ARCHIVE needs --out DIR, and neither --run nor --slot: --from works offline")
    if chain and variant:
        raise UsageError("give --variant NAME (the chain of a shadow) or --chain FILE (another chain), not both")
    from headrace.app.views.offline_page import offline_page
    from headrace.ops.offline.offline_curator import curate_offline

    log_quietly()
    answer(curate_offline(source, policy, chain, out, variant), offline_page, as_json=as_json)


def train(  # noqa: PLR0913, PLR0917 - options, each given by its name
    run: Annotated[str | None, RUN_ADDRESS] = None,
    policy: Annotated[str | None, typer.Option(help="Policy to train; the only one if not given.")] = None,
    variant: VariantChoice = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="ARCHIVE", help="Instead of a run: the archived curated groups of one."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --from: new folder for the last weights and the result of each batch."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="With --from: --set trainer.learning_rate=1e-5. Repeatable."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="With --from: last version to train; default: trainer.steps of the recipe."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE", help="With --from: archive or folder of weights to start from; default: oldest checkpoint."
        ),
    ] = None,
    batches: Annotated[
        bool, typer.Option("--batches", help="With --from: train on the run's recorded batches and compare hashes.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train on curated groups and publish weights; one process per policy, which can resume. Or over an archive.

    Example: [bold]headrace train --run kafka://127.0.0.1:9092/arithmetic --policy solver[/]

    On several GPUs or machines, with the weights in shards (FSDP2), under torchrun.

    Example: [bold]torchrun --nproc-per-node 8 --max-restarts 3 --no-python -- headrace train --run kafka://...[/]

    Without a run: train on archived groups, with changed settings, into a folder that transformers can load.

    Example: [bold]headrace train --from sums.archive --out tried --set trainer.learning_rate=1e-4[/]
    """
    if source is None:
        if run is None or out or sets or steps or start or batches or as_json:
            raise UsageError(
                "give --run ADDRESS, or --from ARCHIVE and --out DIR; "
                "--set, --steps, --start, --batches and --json go with --from"
            )
        from headrace.trainers.train import main

        main(run, policy, variant)
        return
    if run or variant or out is None:
        raise UsageError("--from ARCHIVE needs --out DIR, and neither --run nor --variant: --from works offline")
    from headrace.infra.archive.reading import Archive
    from headrace.infra.progress import open_progress

    log_quietly()
    Archive(source)  # a place that holds none is reported before torch is loaded
    from headrace.app.views.offline_page import offline_training_page
    from headrace.ops.offline.offline_trainer import TrainingRequest, train_offline

    request = TrainingRequest(policy, tuple(sets or ()), steps, start, batches)
    with open_progress("versions trained") as tell:
        found = train_offline(source, out, request, tell)
    answer(found, offline_training_page, as_json=as_json)


def evaluate(
    run: Annotated[str | None, RUN_ADDRESS] = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(metavar="[POLICY=]FOLDER", help="Instead of a run: weights in Hugging Face layout. Repeatable."),
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="With --weights: recipe that gives the held-out problems.")] = None,
    sets: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute avg@k and pass@k per version from answers to held-out problems; or play these with weights in a folder.

    Example: [bold]headrace evaluate --run kafka://127.0.0.1:9092/arithmetic[/]

    Example: [bold]headrace evaluate --recipe arithmetic --weights exported-model[/]
    """
    if weights is None:
        if run is None or recipe or sets or as_json:
            raise UsageError("give --run ADDRESS, or --weights FOLDER and --recipe NAME; --set and --json go with them")
        from headrace.consumers.evaluate.evaluator import main

        main(run)
        return
    if run or recipe is None:
        raise UsageError("--weights FOLDER needs --recipe NAME, and no --run: --weights works offline")
    from headrace.app.views.tables import evaluation_table
    from headrace.infra.recipe.recipe_file import load_recipe
    from headrace.ops.offline.held_out import evaluate as play_held_out
    from headrace.ops.offline.held_out import named_folders

    log_quietly()
    asked = load_recipe(recipe, sets or ())
    answer(play_held_out(asked, named_folders(asked, weights)), evaluation_table, as_json=as_json)


def compact(
    run: RunChoice = None,
    data: DataChoice = None,
    policy: Annotated[str | None, typer.Option("--policy", help="Policy to compact; all if not given.")] = None,
    every: Annotated[int, typer.Option(min=1, help="Most deltas to leave unmerged.")] = 16,
    once: Annotated[bool, typer.Option("--once", help="Merge what is there now, then exit.")] = False,
) -> None:
    """Merge deltas, so that a worker that joins hundreds of versions late fetches few objects.

    Start it during a run or after it, on any machine; nothing depends on it.

    Example: [bold]headrace compact --data .headrace/arithmetic --once[/]
    """
    from headrace.ops.compaction.compactor import main

    main(run, data, policy, every, once=once)
