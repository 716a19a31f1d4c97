"""Options that several commands take, and how commands answer."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headrace.infra.errors import HeadraceError, UsageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

T = TypeVar("T")

RUN_ADDRESS = typer.Option("--run", metavar="ADDRESS", help="kafka://HOST:PORT/RUN, as `up` prints it.")
RunOption = Annotated[str, RUN_ADDRESS]
RunChoice = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="ADDRESS",
        help="Address of a live run, kafka://HOST:PORT/RUN; with --data only RUN, a run on the Kafka of that folder.",
    ),
]
DataChoice = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Data folder of a run; default: the only one in .headrace."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change one key of the recipe: --set trainer.steps=40. Repeatable."
    ),
]
PolicyChoice = Annotated[str | None, typer.Option("--policy", help="Policy; default: the only one.")]
VariantChoice = Annotated[
    str | None, typer.Option("--variant", help="Name of a shadow of the policy, to use instead of the policy.")
]
CHECK_FAILED = 1
"""Exit code of a command that found something wrong."""
NO_VERDICT = 3
CLICK_ERROR: type[Any] = typer.BadParameter.__mro__[2]
"""Errors of a command line. Some releases of Typer have their own copy of Click's classes."""
JSON = "--json"
PROGRAM = "headrace"
USUAL_WIDTH = 80
JsonOption = Annotated[bool, typer.Option(JSON, help='Print JSON for programs; an error too, as {"error": "…"}.')]


class NoVerdict(HeadraceError):
    """A run could not be read, so there is no verdict."""

    exit_code = NO_VERDICT


def print_answer(found: T, page: Callable[[T], RenderableType], *, as_json: bool) -> None:
    """Print the result, as JSON or as a page."""
    if as_json:
        print_json(found)
    else:
        open_console().print(page(found), crop=False)


def print_json(found: object) -> None:
    """Print the result as JSON; when nobody reads it, the command still goes on to its own exit code."""
    from headrace.ops.plain_json import encode_json

    try:
        typer.echo(encode_json(found))
    except BrokenPipeError:
        from headrace.app.cli.viewer import AnswerConsole

        AnswerConsole().on_broken_pipe()


def report_written(files: Iterable[Path]) -> None:
    """Report on standard error the files that a command wrote besides its answer."""
    typer.echo(f"wrote {' and '.join(str(file) for file in files)}", err=True)


def open_console(*, outlives_reader: bool = False, on_stderr: bool = False) -> Console:
    """Return a console that writes to standard output, as wide as the terminal.

    When nobody reads its output any more, the command goes on without it, and ends with its own exit code.

    Args:
        outlives_reader: Whether the command continues without its page when nobody reads its output any more.
        on_stderr: Write to standard error instead.
    """
    from headrace.app.cli.streams import outlive_reader
    from headrace.app.cli.viewer import AnswerConsole, SafeConsole

    if outlives_reader:
        return _set_width(SafeConsole(file=outlive_reader(sys.stderr if on_stderr else sys.stdout)))
    return _set_width(SafeConsole(stderr=True) if on_stderr else AnswerConsole())


def open_viewer() -> Console:
    """Return a console for a command that only shows: the command ends, without an error, when its reader is gone."""
    from headrace.app.cli.viewer import Viewer

    return _set_width(Viewer())


def _set_width(console: Console) -> Console:
    if console.width < 1:  # COLUMNS=0, as some shells and CI systems set it: nothing would be shown
        console.width = USUAL_WIDTH
    return console


def log_quietly() -> None:
    """Log only warnings, on standard error: standard output is the answer. HEADRACE_LOG sets another level."""
    from headrace.infra.log import warn_in_sentences

    warn_in_sentences()


@contextmanager
def exit_without_verdict_on_error() -> Iterator[None]:
    """Exit with NO_VERDICT if the block could not show the result.

    This prints the traceback of an unexpected error. The error itself would end the process with exit code 1, and that
    code means that the run is wrong.
    """
    try:
        yield
    except (UsageError, typer.Exit, typer.Abort, CLICK_ERROR):
        raise
    except (HeadraceError, OSError) as error:
        raise NoVerdict(str(error)) from error
    except Exception as error:
        import traceback

        from headrace.infra.own_frames import read_error_text

        with suppress(OSError):
            traceback.print_exception(error)
        raise NoVerdict(
            f"no verdict on the run, because the command itself failed with {type(error).__name__}: "
            f"{read_error_text(error)} (traceback above). If the traceback ends in your own code, the defect is there; "
            "otherwise it is in Headrace"
        ) from error


def program_name() -> str:
    """Return the words by which this user's shell finds Headrace: its name if it is on the PATH, else a path."""
    called = Path(sys.argv[0])
    if called.suffix == ".py":
        found = shutil.which(PROGRAM)
        if found is not None and Path(found).resolve().parent == Path(sys.executable).parent.resolve():
            return PROGRAM
        return shlex.join([sys.executable, "-m", "headrace"])
    return called.name if shutil.which(called.name) else shlex.quote(str(called))
