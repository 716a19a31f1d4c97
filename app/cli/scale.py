"""The commands that change how many workers and curators a run has: `headrace scale`, `headrace autoscale`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.app.cli.options import RUN_ADDRESS, DataChoice, JsonOption, log_quietly, print_answer
from headrace.infra.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headrace.app.launcher.scale import Scaled
    from headrace.infra.embedded.data_folder import DataFolder
    from headrace.infra.run.run import Run
    from headrace.ops.autoscale.scalers import Scaler


def scale(
    numbers: Annotated[
        list[str],
        typer.Argument(
            metavar="PART=N...",
            help="rollout=N (workers of each workflow), curate=N (curators of each policy), or both.",
        ),
    ],
    run: Annotated[str | None, RUN_ADDRESS] = None,
    data: DataChoice = None,
    workflow: Annotated[str | None, typer.Option(help="Whose workers are meant; default: each.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Change how many rollout workers and curators a running `headrace up` runs. Nothing else restarts.

    `up` starts the missing ones, or lets those with the highest numbers leave: they hand their open tasks back, so that
    no group is lost. With rollout=0 the run pauses. Each worker and curator needs a partition; further ones stay idle.

    The numbers also hold when the run is resumed, until launch.workers or launch.curators in the recipe changes.

    Exit code 1 when no `headrace up` runs the run on this machine, or when the run has ended.

    Example: [bold]headrace scale rollout=4 --data .headrace/arithmetic[/]
    """
    from headrace.app.launcher.scale import find_folder
    from headrace.app.launcher.scale import scale as ask

    log_quietly()
    print_answer(ask(find_folder(run, data), numbers, workflow), _describe, as_json=as_json)


def autoscale(  # noqa: PLR0913, PLR0917 - options, each given by its name
    run: Annotated[str | None, RUN_ADDRESS] = None,
    data: DataChoice = None,
    least: Annotated[int, typer.Option("--min", min=1, help="Least workers of a workflow.")] = 1,
    most: Annotated[
        int | None,
        typer.Option("--max", min=1, help="Most workers of a workflow.", show_default="partitions of its tasks"),
    ] = None,
    workflow: Annotated[str | None, typer.Option(help="Whose workers are meant; default: each.")] = None,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
    kubernetes: Annotated[
        str | None,
        typer.Option(metavar="NAMESPACE/DEPLOYMENT", help="Scale this Deployment instead of a `headrace up` here."),
    ] = None,
) -> None:
    """Change the number of rollout workers by how long the trainers wait for groups, until the run ends.

    Workers are added when the trainer waits for more than 10 % of its time, and removed when it waits for less than 5 %
    and the workers have room that they do not need. Each decision is a record on the topic `scaling`, with its reason;
    `headrace status` shows the newest. One autoscaler per workflow: a second one replaces the first.

    Example: [bold]headrace autoscale --data .headrace/arithmetic --max 8[/]

    Example: [bold]headrace autoscale --run kafka://kafka-1:9092/my-run --kubernetes headrace/rollout-sums[/]
    """
    from headrace.app.launcher.scale import find_folder
    from headrace.ops.autoscale.autoscaler import AutoscaleRequest, main

    request = AutoscaleRequest(least, most, workflow, every)
    if kubernetes is not None and run:
        main(run, request, lambda joined: _open_kubernetes(kubernetes, joined, workflow))
        return
    folder = find_folder(run, data)
    address = folder.require_notes().address
    if kubernetes is not None:
        main(address, request, lambda joined: _open_kubernetes(kubernetes, joined, workflow), folder.ledger)
        return
    main(address, request, lambda joined: _open_local(folder, joined, most), folder.ledger)


def _open_local(folder: DataFolder, run: Run, most: int | None) -> Scaler:
    from headrace.ops.autoscale.scalers import LocalScaler
    from headrace.producers.engines.registry import check_engine

    check_engine(run.recipe, run.recipe.task_partitions if most is None else most)
    return LocalScaler(folder, run.run_id, run.recipe)


def _open_kubernetes(where: str, run: Run, workflow: str | None) -> Scaler:
    from headrace.ops.autoscale.kubernetes_scaler import KubernetesScaler

    if workflow is None and len(run.recipe.workflows) > 1:
        names = ", ".join(run.recipe.workflows)
        raise UsageError(f"the run has several workflows, {names}, and a Deployment runs one: name it by --workflow")
    return KubernetesScaler(where)


def _describe(found: Scaled) -> RenderableType:
    from headrace.app.views.safe_text import Text

    return Text("\n".join((f"asked `headrace up` (process {found.pid}) of run {found.run}:", *found.sentences)))
