"""The command that changes how many workers and curators a running `headrace up` runs: `headrace scale`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.app.cli.options import RUN_ADDRESS, DataChoice, JsonOption, log_quietly, print_answer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headrace.app.launcher.scale import Scaled


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


def _describe(found: Scaled) -> RenderableType:
    from headrace.app.views.safe_text import Text

    return Text("\n".join((f"asked `headrace up` (process {found.pid}) of run {found.run}:", *found.sentences)))
