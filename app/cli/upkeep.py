"""Commands that clean up after a run: `headrace dead-letters`, `redrive`, `gc`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from headrace.app.cli.options import CHECK_FAILED, DataChoice, JsonOption, RunChoice, log_quietly, print_answer


def dead_letters(
    run: RunChoice = None,
    data: DataChoice = None,
    reason: Annotated[str | None, typer.Option(help="Only dead letters of this reason.")] = None,
    offset: Annotated[
        int | None, typer.Option(min=0, help="Show the dead letter at this offset with its bytes.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the records that could not be read: their origin, the reason, and whether they were sent back; or show one.

    For a dead letter that was sent back, the list names the dead letter of reason `redriven` that records this. If its
    record failed again, the list names the new dead letter too.

    Example: [bold]headrace dead-letters --data .headrace/arithmetic --offset 3[/]
    """
    from headrace.app.views.dead_letters import dead_letter_view, dead_letters_table
    from headrace.ops.dead_letters.listing import listing, read_detail
    from headrace.ops.opened_run import open_run

    log_quietly()
    with open_run(run, data) as opened:
        if offset is None:
            found = listing(opened.run, reason, opened.ledger)
            print_answer(found, partial(dead_letters_table, reason=reason), as_json=as_json)
        else:
            print_answer(read_detail(opened.run, offset, opened.ledger), dead_letter_view, as_json=as_json)


def redrive(
    run: RunChoice = None,
    data: DataChoice = None,
    offset: Annotated[list[int] | None, typer.Option(help="Offset of a dead letter. Repeatable.")] = None,
    reason: Annotated[str | None, typer.Option(help="Only dead letters of this reason.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent back, and send nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters back to their topics after a fix: their tasks are open again.

    Each dead letter is sent back once. If its record fails again, there is a new dead letter, which you can send back.

    Exit code 1 when a dead letter given by --offset cannot be sent back, or when the run has ended.

    Example: [bold]headrace redrive --data .headrace/arithmetic --reason missing_object --dry-run[/]
    """
    from headrace.app.views.dead_letters import redrive_table
    from headrace.ops.dead_letters.redrive import redrive as send_back
    from headrace.ops.opened_run import open_run

    log_quietly()
    with open_run(run, data) as opened:
        done = send_back(opened.run, offset or (), reason, dry_run=dry_run, ledger=opened.ledger)
        print_answer(done, redrive_table, as_json=as_json)
    if offset and done.refused:
        raise typer.Exit(CHECK_FAILED)


def gc(  # noqa: PLR0913, PLR0917 - options, each given by its name
    run: RunChoice = None,
    data: DataChoice = None,
    keep_versions: Annotated[
        int,
        typer.Option(
            min=1,
            help="How many of the newest versions keep their weights. Less than 64 counts as 64, because workers may "
            "still load the newest 64.",
        ),
    ] = 64,
    keep_checkpoints: Annotated[
        int | None,
        typer.Option(min=1, help="How many of the newest checkpoints to keep; default: all.", show_default=False),
    ] = None,
    older_than: Annotated[
        str,
        typer.Option(
            metavar="AGE",
            help="Keep objects younger than AGE, as in 36h or 2d. Less than 1d only for a stopped run.",
        ),
    ] = "1d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete the objects of a run that nothing needs any more, according to its topics.

    These are objects that no record names (crashes leave them), weights of versions that no worker begins with, and,
    with --keep-checkpoints, older checkpoints. The first version, its checkpoint, groups and files are never deleted.

    Before weights and checkpoints are deleted, a record retires them, so that `audit` and `retrain` know. If a record
    cannot be read, nothing is deleted.

    Example: [bold]headrace gc --data .headrace/arithmetic --dry-run[/]
    """
    from headrace.app.views.gc_page import gc_page
    from headrace.infra.durations import duration_of
    from headrace.ops.opened_run import open_run
    from headrace.ops.retention.collector import CollectionRequest, command

    log_quietly()
    request = CollectionRequest(keep_versions, keep_checkpoints, duration_of(older_than), dry_run)
    with open_run(run, data, store=True) as opened:
        found = command(opened.run, request, rests=opened.is_alone)
        print_answer(found, gc_page, as_json=as_json)
