"""Commands for before and after a run: topics, rights in a store, checks of this machine, cleaning."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.app.cli.options import (
    CHECK_FAILED,
    DataChoice,
    JsonOption,
    RunChoice,
    SetOption,
    log_quietly,
    open_console,
    print_answer,
)
from headrace.infra.errors import UsageError

if TYPE_CHECKING:
    from headrace.ops.preflight.contract import Finding


def topics(
    recipe: Annotated[str | None, typer.Argument(help="A recipe, to see or make its topics before a run.")] = None,
    run: RunChoice = None,
    data: DataChoice = None,
    sets: SetOption = None,
    only_list: Annotated[bool, typer.Option("--list", help="Only list the topics: create and check none.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the topics of a recipe or run; on a cluster create those that are missing and check the others.

    Example: [bold]headrace topics arithmetic --set kafka.bootstrap=broker:9092[/]

    Example: [bold]headrace topics my-run.toml --list[/]

    Example: [bold]headrace topics --data .headrace/arithmetic[/]
    """
    from headrace.app.views.topics_page import topics_page
    from headrace.ops.opened_run import open_run
    from headrace.ops.topic_listing import list_topics_of_recipe, list_topics_of_run

    log_quietly()
    if recipe is not None:
        if run or data:
            raise UsageError("give either a recipe, as in `headrace topics arithmetic`, or a run by --run or --data")
        print_answer(list_topics_of_recipe(recipe, sets or (), only_list=only_list), topics_page, as_json=as_json)
        return
    if sets:
        raise UsageError("--set can be used only with a recipe: the recipe of a run is recorded already")
    with open_run(run, data) as opened:
        print_answer(list_topics_of_run(opened.run, only_list=only_list), topics_page, as_json=as_json)


def store_policy(
    role: Annotated[str, typer.Option("--role", metavar="ROLE", help="Component; `list` shows all.")],
    bucket: Annotated[str, typer.Option("--bucket", help="The recipe's store.bucket.")] = "headrace",
) -> None:
    """Print the policy that a component's keys need in your own object store, as JSON.

    Example: [bold]headrace store-policy --role worker > worker.json[/]
    """
    from headrace.infra.store.policy import STORE_ROLES, build_policy

    if role != "list" and role not in STORE_ROLES:
        raise UsageError(f"--role must be one of {', '.join(STORE_ROLES)}, or list; got {role!r}")
    typer.echo(build_policy(role, bucket) if role != "list" else "\n".join(STORE_ROLES))


def doctor(
    recipe: Annotated[
        str | None, typer.Argument(help="Recipe to check, as `up` does before it starts anything.")
    ] = None,
    sets: SetOption = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="ADDRESS", help="Cluster to check: kafka://HOST:PORT/RUN. The run may be new."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="With a recipe: its data folder.", show_default=".headrace/<run>"),
    ] = None,
) -> None:
    """Check whether this machine can run Headrace, and show how to get what is missing.

    With a recipe, check all that it names and needs here: devices, model, data, your own modules, memory, disk, and
    the Kafka cluster and the object store that it names.

    With --run, check whether a Kafka cluster can carry that run, as `up` does before it starts anything.

    Each line is marked `ok`, `lack` (must be fixed) or `note` (unknown, or not needed).

    Example: [bold]headrace doctor[/]

    Example: [bold]headrace doctor my-run.toml[/]

    Example: [bold]headrace doctor --run kafka://broker:9092/my-run[/]
    """
    from rich.markup import escape

    from headrace.app.views.variables import variables_table
    from headrace.ops.preflight.table import examine_machine

    if recipe is None and (sets or data):
        option = "--set" if sets else "--data"
        raise UsageError(f"{option} can be used only with a recipe, as in `headrace doctor my-run.toml {option} …`")
    if recipe is not None and run is not None:
        raise UsageError("give either a recipe, as in `headrace doctor my-run.toml`, or a cluster by --run")
    lacking = 0
    console = open_console()
    findings: Iterable[Finding] = ()
    if recipe is not None:
        from headrace.infra.embedded.data_folder import data_folder_of
        from headrace.infra.recipe.recipe_file import load_recipe
        from headrace.ops.preflight.cluster import examine_servers
        from headrace.ops.preflight.table import build_check_input, run_checks

        log_quietly()
        loaded = load_recipe(recipe, sets or ())
        checks = run_checks(build_check_input(loaded, data_folder_of(loaded.name, data)))
        findings = chain(checks, examine_servers(loaded))
    elif run is not None:
        from headrace.ops.preflight.cluster import examine_run

        log_quietly()
        findings = examine_run(run)
    else:
        findings = examine_machine()
    for finding in findings:
        lacking += not finding.ok
        mark = "[red]lack[/]" if not finding.ok else "[yellow]note[/]" if finding.is_note else "[green]ok  [/]"
        line = f"{mark} [bold]{escape(f'{finding.what:<14}')}[/] {escape(finding.detail)}"
        console.print(line, highlight=False, soft_wrap=True)
    if run is None and recipe is None:
        console.print(variables_table(), soft_wrap=True)
    if lacking:
        raise typer.Exit(CHECK_FAILED)


def clean(
    data: DataChoice = None,
    everything: Annotated[bool, typer.Option("--all", help="All runs in .headrace.")] = False,
    cache: Annotated[
        bool, typer.Option("--cache", help="Also remove what runs share: jars, caches, kept weights.")
    ] = False,
) -> None:
    """Delete all data of a run in its folder: topics, objects, logs. Its servers that still run are stopped first.

    Topics and objects on servers that the recipe names are kept: delete those with the servers' own tools.

    Example: [bold]headrace clean --data .headrace/arithmetic[/]
    """
    from headrace.ops.cleaning import clean_cache, clean_folder, folders_to_clean

    log_quietly()
    for folder in folders_to_clean(data, everything=everything, may_be_none=cache):
        freed, kept = clean_folder(folder)
        typer.echo(f"removed {freed / 1e6:.0f} MB: {_describe_removed(folder.root, kept)}")
    if cache:
        typer.echo(f"removed {_describe_removed(*clean_cache())}")


def _describe_removed(folder: Path, kept: list[str]) -> str:
    return f"what runs made in {folder}; other files there are kept: {', '.join(kept)}" if kept else str(folder)
