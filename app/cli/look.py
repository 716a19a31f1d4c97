"""Commands that look at a run: `headrace status`, `audit`, `lineage`, `inspect`, `discards`."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.app.cli.options import (
    CHECK_FAILED,
    NO_VERDICT,
    DataChoice,
    JsonOption,
    PolicyChoice,
    RunChoice,
    VariantChoice,
    exit_without_verdict_on_error,
    log_quietly,
    print_answer,
    report_written,
)
from headrace.infra.errors import UsageError

if TYPE_CHECKING:
    from headrace.infra.run.run import Run


def status(run: RunChoice = None, data: DataChoice = None, as_json: JsonOption = False) -> None:
    """Show the state of a run: versions, groups, lag, workers. For a stopped run, its embedded Kafka is started.

    Example: [bold]headrace status --data .headrace/arithmetic[/]
    """
    from headrace.app.views.tables import status_table
    from headrace.ops.figures.status import status as status_of
    from headrace.ops.opened_run import open_run

    log_quietly()
    with open_run(run, data) as opened:
        found = status_of(opened.run, rests=opened.rests, began_ms=opened.began_ms, ledger=opened.ledger)
        print_answer(found, status_table, as_json=as_json)


def audit(
    run: RunChoice = None,
    data: DataChoice = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also decode every group, and read every object.")] = False,
    no_store: Annotated[bool, typer.Option("--no-store", help="Do not check the object store.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check in topics and store that nothing was lost, trained twice or broken.

    Exit code 0 when the audit closes, 1 when it does not, 3 when the run or its objects cannot be read, so that there
    is no verdict.

    The audit closes if every task concludes once per policy, every kept group is trained or evicted, every version
    follows from the one before it, and every published object exists and has the right hash.

    Example: [bold]headrace audit --data .headrace/arithmetic --json[/]
    """
    from headrace.app.views.tables import audit_table
    from headrace.ops.audit.report import report
    from headrace.ops.opened_run import open_run

    log_quietly()
    with exit_without_verdict_on_error(), open_run(run, data, store=not no_store) as opened:
        found = report(opened.run, rests=opened.rests, deep=deep, use_store=not no_store)
        print_answer(found, audit_table, as_json=as_json)
    if found.problems:
        raise typer.Exit(CHECK_FAILED)
    if not found.ok:
        raise typer.Exit(NO_VERDICT)


def lineage(  # noqa: PLR0913, PLR0917 - options, each given by its name
    version: Annotated[
        int | None, typer.Option(min=0, help="Show the groups that this version was trained on.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="STREAM:NUMBER", help="Show the versions trained on this group, or why there are none."),
    ] = None,
    policy: PolicyChoice = None,
    variant: VariantChoice = None,
    run: RunChoice = None,
    data: DataChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Show which groups a version was trained on, or what happened to a group. Reads only the topics.

    Example: [bold]headrace lineage --version 3 --data .headrace/arithmetic[/]
    """
    from headrace.app.views.lineage_page import group_page, version_page
    from headrace.ops.lineage.group_fate import look_up_group
    from headrace.ops.lineage.lineage import version_lineage
    from headrace.ops.opened_run import open_run

    log_quietly()
    if (version is None) == (group is None):
        raise UsageError("give either --version V or --group STREAM:NUMBER, as in --group sums:12")
    if group is not None and not re.fullmatch(r"[^:]+:\d+", group):
        raise UsageError(f"--group {group!r} is not a group: write STREAM:NUMBER, as in --group sums:12")
    with open_run(run, data, store=True) as opened:
        policy_variant = _resolve_policy_variant(opened.run, policy, variant)
        if version is not None:
            made = version_lineage(opened.run, policy_variant, version, opened.ledger)
            print_answer(made, version_page, as_json=as_json)
        elif group is not None:
            found = look_up_group(opened.run, policy_variant, group, opened.ledger)
            print_answer(found, group_page, as_json=as_json)


def inspect(  # noqa: PLR0913, PLR0917 - options, each given by its name
    step: Annotated[int | None, typer.Option(min=0, help="Show a step, given by the version that it made.")] = None,
    trajectory: Annotated[
        str | None, typer.Option(metavar="STREAM:NUMBER:SAMPLE", help="Show one trajectory token by token.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="INDEX", help="One group of the step: its index, or STREAM:NUMBER.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Show at most this number of groups (default: 4) or tokens (default: 400); 0: all.",
            show_default=False,
        ),
    ] = None,
    policy: PolicyChoice = None,
    variant: VariantChoice = None,
    run: RunChoice = None,
    data: DataChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Open a step of the trainer, or one trajectory: texts, rewards, log-probabilities, advantages, versions.

    Example: [bold]headrace inspect --step 3 --data .headrace/arithmetic[/]
    """
    from headrace.app.views.inspection_page import step_page, trajectory_page
    from headrace.ops.lineage.inspection import step as open_step
    from headrace.ops.lineage.inspection import trajectory as open_trajectory
    from headrace.ops.opened_run import open_run

    log_quietly()
    if (step is None) == (trajectory is None):
        raise UsageError("give either --step VERSION or --trajectory STREAM:NUMBER:SAMPLE, as in sums:12:0")
    if group is not None and step is None:
        raise UsageError("--group chooses a group of a step: give it with --step VERSION, and not with --trajectory")
    if trajectory is not None and not re.fullmatch(r"[^:]+:\d+:\d+", trajectory):
        raise UsageError(
            f"--trajectory {trajectory!r} is not a trajectory: write STREAM:NUMBER:SAMPLE, as in sums:12:0"
        )
    with open_run(run, data, store=True) as opened:
        policy_variant = _resolve_policy_variant(opened.run, policy, variant)
        if step is not None:
            chosen = slice((4 if limit is None else limit) or None) if group is None else group
            found = open_step(opened.run, policy_variant, step, chosen, opened.ledger)
            print_answer(found, step_page, as_json=as_json)
        elif trajectory is not None:
            tokens = 400 if limit is None else limit
            opened_one = open_trajectory(opened.run, policy_variant, trajectory, opened.ledger)
            print_answer(opened_one, partial(trajectory_page, limit=tokens), as_json=as_json)


def discards(
    policy: Annotated[str | None, typer.Option("--policy", help="Policy; default: all.")] = None,
    variant: VariantChoice = None,
    run: RunChoice = None,
    data: DataChoice = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw lengths, rewards and ages: .png, .svg or .pdf.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the groups that were never trained on: reasons, lengths, rewards, ages, and the bias that this causes.

    A group's length is the mean number of generated tokens of its members. "of trained" is the mean length divided by
    that of trained groups, with a 95 % interval: it is a bias if the whole interval is more than 5 % from 1. A group's
    age is the number of versions from its oldest token to the newest weights.

    Example: [bold]headrace discards --data .headrace/arithmetic --plot discards.png[/]
    """
    from headrace.app.views.discards_page import discards_page
    from headrace.ops.discards import discards as discards_of
    from headrace.ops.opened_run import open_run

    log_quietly()
    if plot is not None:
        from headrace.app.views.chart import check_picture

        check_picture(plot, ".png", ".svg", ".pdf")
    with open_run(run, data) as opened:
        found = discards_of(opened.run, _resolve_policy_variant(opened.run, policy, variant), opened.ledger)
    if plot is not None:
        from headrace.app.views.discards_page import plot as draw

        report_written(draw(found, plot))
    print_answer(found, discards_page, as_json=as_json)


def _resolve_policy_variant(run: Run, policy: str | None, variant: str | None) -> str | None:
    return None if policy is None and not variant else run.resolve(policy, variant)
