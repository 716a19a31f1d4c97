"""Commands that begin a run without `headrace up`: its servers, its topics and its page, one by one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from headrace.app.cli.options import (
    PROGRAM,
    DataChoice,
    RunChoice,
    SetOption,
    log_quietly,
    open_console,
    open_viewer,
    program_name,
)
from headrace.infra.errors import UsageError


def servers(
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Data folder.", show_default=".headrace/servers")
    ] = None,
) -> None:
    """Start only an embedded Kafka and an object store, until Ctrl-C. Any number of runs may share them.

    Prints the lines to put into a recipe. Data, ports and keys stay the same after a restart.

    Example: [bold]headrace servers --data .headrace/servers[/]
    """
    from headrace.app.launcher.redirected_log import redirect_log
    from headrace.app.launcher.standing_servers import run_servers_until_signal
    from headrace.infra.embedded.data_folder import data_folder_of

    folder, console = data_folder_of("servers", data), open_console(outlives_reader=True)
    if folder.read() is not None:
        raise UsageError(
            f"{folder.root} holds a run or a sweep, which starts its servers itself: give another folder by --data"
        )

    def show(lines: str) -> None:
        console.print(lines, highlight=False, markup=False, soft_wrap=True)

    with redirect_log(folder.logs / "servers.log"):
        run_servers_until_signal(folder, _say, show)


def begin(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe by name, or the path of a TOML file.")],
    sets: SetOption = None,
    new_recipe: Annotated[
        bool, typer.Option("--new-recipe", help="Record a changed recipe as a new revision of an existing run.")
    ] = False,
) -> None:
    """Create a run's topics and write its recipe, without starting it. Prints the commands that start each part.

    The recipe must set kafka.bootstrap and store.endpoint. `headrace servers` starts both servers.

    Example: [bold]headrace begin my-run.toml[/]
    """
    from rich.markup import escape

    from headrace.app.launcher.beginning import begin as begin_run
    from headrace.app.launcher.components import list_parts
    from headrace.infra.environment import FOR_USERS, read_environment
    from headrace.infra.recipe.recipe_file import load_recipe
    from headrace.infra.run.region import move_to_region

    log_quietly()
    run = begin_run(load_recipe(recipe, sets or ()), _say, new_recipe=new_recipe)
    if run.ended:
        _say(escape(f"this run has ended ({run.ended}): `headrace status --run {run.address}` shows it"))
        return
    program = program_name()
    there = "" if program == PROGRAM else f" (there the program may be called `{PROGRAM}`)"
    _say(
        f"start each command below in its own terminal, here or on another machine{there}; start `curate` and "
        "`rollout` at most once per partition of the topic that they read"
    )
    regions = {region: str(move_to_region(run, region).address) for region in run.regions}
    for words in list_parts(run.recipe, str(run.address), regions):
        typer.echo(f"  {program} {' '.join(words)}")
    if names := [name for name in FOR_USERS if read_environment(name)]:
        _say(f"each terminal needs the environment variables that are set here: {', '.join(names)}")
    _say("these commands only show the run; start and stop them at any time")
    for command in ("watch", "status", "audit"):
        typer.echo(f"  {program} {command} --run {run.address}")


def watch(
    run: RunChoice = None,
    data: DataChoice = None,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of the live page.")] = False,
) -> None:
    """Show the live page of a running run; its parts may be on any machines. Ctrl-C closes the page, not the run.

    Example: [bold]headrace watch --run kafka://127.0.0.1:9092/my-run[/]
    """
    from rich.markup import escape

    from headrace.app.launcher.watch import watch as follow
    from headrace.app.views.say import say
    from headrace.infra.process.signals import INTERRUPTED
    from headrace.ops.opened_run import open_run

    log_quietly()
    console = open_viewer()
    with open_run(run, data) as opened:
        if opened.rests:
            raise UsageError("this run is not running: `headrace status` shows a stopped run, `headrace up` resumes it")
        try:
            ended = follow(
                opened.run, console, partial(say, console), plain=plain, began_ms=opened.began_ms, ledger=opened.ledger
            )
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    where = f"--run {opened.run.address}"
    say(console, escape(f"the run has ended ({ended}): see `headrace status {where}` and `headrace audit {where}`"))


def _say(words: str) -> None:
    from headrace.app.views.say import say

    say(open_console(outlives_reader=True), words)
