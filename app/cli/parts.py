"""Commands for the parts of a run, each its own process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.app.cli.options import RunOption, VariantChoice

RegionOption = Annotated[str, typer.Option(help="Region of the recipe.")]


def feed(run: RunOption) -> None:
    """Issue tasks at the pace of the trainers; one per run.

    Example: [bold]headrace feed --run kafka://127.0.0.1:9092/arithmetic[/]
    """
    from headrace.producers.feed.feeder import main

    main(run)


def rollout(
    run: RunOption,
    workflow: Annotated[str | None, typer.Option(help="Workflow to play; default: the only one.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of this worker; default: host and pid.")] = None,
    region: Annotated[str, typer.Option(help="Region of this worker, named in its status and groups.")] = "",
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests in the engine at once; default: the recipe's.")
    ] = None,
    kind: Annotated[
        str, typer.Option(metavar="NAME", help="Kind of this worker, to which the recipe may pin work; default: none.")
    ] = "",
) -> None:
    """Play tasks and produce trajectories; start workers at any time, on any machine, at most one per partition.

    Example: [bold]headrace rollout --run kafka://127.0.0.1:9092/arithmetic[/]
    """
    from headrace.producers.rollout.worker import main

    main(run, workflow, name, region, concurrency, kind)


def relay(run: RunOption, region: RegionOption) -> None:
    """Bring published weights into a region, each object once; one process per region.

    Example: [bold]headrace relay --run kafka://127.0.0.1:9092/arithmetic --region west[/]
    """
    from headrace.consumers.relay.relay import main

    main(run, region)


def mirror(
    run: RunOption,
    region: RegionOption,
    folder: Annotated[Path | None, typer.Option(help="Folder of its settings and logs; default: in the cache.")] = None,
) -> None:
    """Copy tasks into a region and trajectories back, by Kafka's MirrorMaker 2; one process per region.

    Example: [bold]headrace mirror --run kafka://127.0.0.1:9092/arithmetic --region west[/]
    """
    from headrace.consumers.relay.mirror import main

    main(run, region, folder)


def curate(
    run: RunOption,
    policy: Annotated[str | None, typer.Option(help="Policy to curate for; default: the only one.")] = None,
    variant: VariantChoice = None,
    slot: Annotated[
        str | None,
        typer.Option(help="Name given by a supervisor; a new process with the same name fences the old one."),
    ] = None,
) -> None:
    """Choose the groups to train on by the recipe's chain; start at most one process per partition.

    Over an archive: [bold]headrace offline curate[/]

    Example: [bold]headrace curate --run kafka://127.0.0.1:9092/arithmetic --policy solver[/]
    """
    from headrace.consumers.curate.curator import main

    main(run, policy, slot, variant)


def train(
    run: RunOption,
    policy: Annotated[str | None, typer.Option(help="Policy to train; default: the only one.")] = None,
    variant: VariantChoice = None,
) -> None:
    """Train on curated groups and publish weights; one process per policy. A restarted process resumes.

    Over an archive: [bold]headrace offline train[/]

    Example: [bold]headrace train --run kafka://127.0.0.1:9092/arithmetic --policy solver[/]

    On several GPUs or machines, start it under torchrun; each process then holds a shard of the weights (FSDP2).

    Example: [bold]torchrun --nproc-per-node 8 --max-restarts 3 --no-python -- headrace train --run kafka://...[/]
    """
    from headrace.infra.process.end_report import report_failure

    with report_failure():
        from headrace.trainers.train import main

        main(run, policy, variant)


def evaluate(run: RunOption) -> None:
    """Compute avg@k and pass@k per version from the answers to held-out problems; one process per run.

    Of weights in a folder: [bold]headrace offline evaluate[/]

    Example: [bold]headrace evaluate --run kafka://127.0.0.1:9092/arithmetic[/]
    """
    from headrace.consumers.evaluate.evaluator import main

    main(run)
