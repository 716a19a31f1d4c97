"""Commands about the data of a run: `headrace discards`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra import workers
from infra.cli_options import DataChoice, JsonOption, RunChoice, VariantChoice, answer, log_quietly


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
    groups, with a 95 % interval. The age is in versions: between a group's oldest token and the newest weights.

    Example: [bold]headrace discards --data .headrace/arithmetic --plot discards.png[/]
    """
    from infra.opened_run import opened_run

    log_quietly()
    with opened_run(run, data) as opened:
        found = workers.find(workers.DISCARDS)(opened.run, opened.run.line(policy, variant))
    if plot is not None:
        workers.find(workers.PLOT_DISCARDS)(found, plot)
    answer(found, workers.SHOW_DISCARDS, as_json=as_json)
