"""Options that several commands take, and how commands answer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.app import workers

if TYPE_CHECKING:
    from rich.console import Console

RUN_ADDRESS = typer.Option("--run", metavar="ADDRESS", help="kafka://HOST:PORT/RUN, as `up` prints it.")
RunOption = Annotated[str, RUN_ADDRESS]
RunChoice = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="ADDRESS",
        help="A running run: kafka://HOST:PORT/RUN; or, of the cluster in --data, by its name.",
    ),
]
DataChoice = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Data folder of a run; the only one in .headrace if not given."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change one key of the recipe: --set trainer.steps=40. Repeatable."
    ),
]
PolicyChoice = Annotated[str | None, typer.Option("--policy", help="Which policy; the only one if not given.")]
VariantChoice = Annotated[
    str | None, typer.Option("--variant", help="A shadow, by its name, instead of the policy it learns beside.")
]
FAILED = 1
"""Exit code of a command that found something wrong."""
JSON = "--json"
JsonOption = Annotated[bool, typer.Option(JSON, help='Print JSON for programs; an error too, as {"error": "…"}.')]


def answer(found: Any, show: str, *more: Any, as_json: bool) -> None:
    """Print what was asked for, as JSON or by the page of that name."""
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        open_console().print(workers.find(show)(found, *more))


def tell_written(files: Iterable[Path]) -> None:
    """Say on standard error which files a command wrote beside its answer."""
    typer.echo(f"wrote {' and '.join(str(file) for file in files)}", err=True)


def open_console() -> Console:
    """Return one that writes to standard output as wide as the terminal."""
    from rich.console import Console

    return Console()


def log_quietly() -> None:
    """Say warnings only, on standard error: standard output is the answer. HEADRACE_LOG asks for more."""
    from headrace.infra.log import warn_in_sentences

    warn_in_sentences()
