"""The command line. Heavy imports happen inside the commands, after parsing: `headrace --help` is quick."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Annotated, cast

import typer

from headrace.app.cli.archive import archive, export_trajectories, replay
from headrace.app.cli.begin import begin, servers, watch
from headrace.app.cli.look import audit, discards, inspect, lineage, status
from headrace.app.cli.offline import COMMAND_NAME as OFFLINE
from headrace.app.cli.offline import app as offline_app
from headrace.app.cli.options import CHECK_FAILED, CLICK_ERROR, JSON
from headrace.app.cli.parts import curate, evaluate, feed, mirror, relay, rollout, train
from headrace.app.cli.retrain import retrain
from headrace.app.cli.run import check_engine, check_tasks, compare, swap, try_recipe, up
from headrace.app.cli.scale import autoscale, scale
from headrace.app.cli.serve import serve_env
from headrace.app.cli.servers import clean, doctor, store_policy, topics
from headrace.app.cli.streams import replace_what_cannot_be_encoded
from headrace.app.cli.upkeep import dead_letters, gc, redrive
from headrace.app.cli.weights import app as weights_app
from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.printable import escape_controls

app = typer.Typer(
    name="headrace",
    help="Train LLM agents by reinforcement learning in which every step is a Kafka topic.\n\n"
    "Begin with [bold]headrace up arithmetic[/]: it starts a Kafka and an object store of its own and trains a tiny "
    "model in about a minute and a half. [bold]headrace doctor[/] checks this machine.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

LOOK_PANEL = "Look"
RUN = "Run"
PARTS_PANEL = "Parts of a run, each its own process"

COMMANDS: tuple[tuple[str, tuple[Callable[..., None], ...]], ...] = (
    (RUN, (up, try_recipe, check_engine, check_tasks, serve_env, clean)),
    (PARTS_PANEL, (servers, begin, feed, rollout, curate, train, evaluate, mirror, relay)),
    (LOOK_PANEL, (status, watch, audit, dead_letters)),
    (RUN, (redrive, gc)),
    (LOOK_PANEL, (lineage, inspect, retrain, discards)),
    (RUN, (swap, scale, autoscale, archive, replay, compare, export_trajectories)),
    (LOOK_PANEL, (topics, store_policy, doctor)),
)
"""Panel and commands, in the order of `--help`; a command has the name of its function."""
NAMES = {export_trajectories: "export", try_recipe: "try"}
"""Function to the name of its command, where the two differ."""
MAY_BE_EMPTY = "--answer"
"""The option whose value may be empty: an answer without a text."""

app.add_typer(offline_app, name=OFFLINE, rich_help_panel=RUN)
app.add_typer(weights_app, name="weights", rich_help_panel=LOOK_PANEL)
for _panel, _commands in COMMANDS:
    for _command in _commands:
        app.command(NAMES.get(_command), rich_help_panel=_panel)(_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def _take_global_options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _skip_markdown_import(words: Sequence[str]) -> None:
    """Keep Typer's help from importing a Markdown parser: that takes half of the time, and our texts use rich's markup.

    A process that prints help does nothing else, so nothing misses the module.
    """
    if not words or not {"-h", "--help"}.isdisjoint(words):
        sys.modules.setdefault("rich.markdown", cast(ModuleType, SimpleNamespace(Markdown=None)))


def _refuse_empty_values(words: Sequence[str]) -> None:
    """Raise UsageError for an empty value, as an unset shell variable gives: as a path it would mean this folder."""
    for before, word in pairwise(("headrace", *words)):
        after = before if not word else word[:-1] if word.startswith("--") and word.find("=") == len(word) - 1 else ""
        if after and after != MAY_BE_EMPTY:
            raise UsageError(f"the value after {after} is empty: give a value, or leave {after} out")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; expected errors become one message and an exit code, with --json also a JSON object."""
    replace_what_cannot_be_encoded()
    words = sys.argv[1:] if arguments is None else arguments
    if arguments is None:
        _skip_markdown_import(words)
    try:
        _refuse_empty_values(words)
        app(args=None if arguments is None else list(arguments))
    except (HeadraceError, OSError) as error:
        from headrace.infra.environment import LOG_LEVEL_VARIABLE, read_environment

        with suppress(OSError):  # standard error is closed, and the exit code still tells of the error
            if read_environment(LOG_LEVEL_VARIABLE) == "debug":
                import traceback

                traceback.print_exception(error)
            typer.echo(f"error: {escape_controls(str(error))}", err=True)
        _print_error_as_json(str(error), words)
        sys.exit(error.exit_code if isinstance(error, HeadraceError) else CHECK_FAILED)
    except SystemExit as ended:
        if isinstance(wrong := ended.__context__, CLICK_ERROR):  # Typer has shown it already
            _print_error_as_json(wrong.format_message(), words)
        raise


def _print_error_as_json(error: str, words: Sequence[str]) -> None:
    """Print an error as JSON if the command line has --json."""
    if JSON in words:
        with suppress(OSError):
            typer.echo(json.dumps({"error": error}))


if __name__ == "__main__":
    main()
