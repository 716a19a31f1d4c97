"""Commands that start a run, try or change one, or start several: `headrace up`, `try`, `swap`, `compare`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.app.cli.options import (
    CHECK_FAILED,
    DataChoice,
    JsonOption,
    PolicyChoice,
    RunChoice,
    SetOption,
    log_quietly,
    open_console,
    print_answer,
    print_json,
    program_name,
    report_written,
)
from headrace.infra.environment import API_KEY_VARIABLE, read_environment
from headrace.infra.errors import UsageError

if TYPE_CHECKING:  # both need torch
    from headrace.ops.offline.api_trial import ApiTried
    from headrace.ops.offline.trial import Tried


def up(  # noqa: PLR0913, PLR0917 - options, each given by its name
    recipe: Annotated[str, typer.Argument(help="A shipped recipe by name, or the path of a TOML file.")],
    sets: SetOption = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Data folder.", show_default=".headrace/<run>")
    ] = None,
    summary: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the summary there, as JSON.")] = None,
    new_recipe: Annotated[
        bool, typer.Option("--new-recipe", help="Record a changed recipe as a new revision of an existing run.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of the live page.")] = False,
    branch: Annotated[
        str,
        typer.Option(
            metavar="RUN@VERSION",
            help="Begin with weights of another run. RUN: its data folder or address. VERSION: a number, or best.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Run a recipe to its end: servers, components, live page, summary. Give the same command again to resume.

    Example: [bold]headrace up arithmetic --set trainer.steps=40 --summary summary.json[/]

    From a version of another run: [bold]headrace up more.toml --branch .headrace/arithmetic@best[/]

    Over an archive, without servers: [bold]headrace offline up[/]

    On the page,
      [bold]rolling[/]: a worker plays episodes
      [bold]behind[/]: a worker's weights are too old to play with
      [bold]staleness[/]: how many versions older the tokens are than the weights they train
      [bold]log-probability gap[/]: between engine and trainer, on tokens of the same weights
      [bold]zero_variance[/]: all members had the same reward, so there is nothing to learn
      [bold]run_end[/]: the run ended before the group was trained on
      a worker's groups: all that it finished, including evaluations
      a dot in the chart: a version without any group
    """
    from headrace.app.launcher.early_imports import begin_imports

    forks = begin_imports()  # in parallel with our own imports, which take as long
    try:
        from headrace.app.launcher.launcher import UpRequest
        from headrace.app.launcher.launcher import up as bring_up
        from headrace.infra.embedded.data_folder import data_folder_of
        from headrace.infra.recipe.recipe_file import load_recipe

        resolved = load_recipe(recipe, sets or ())
        folder = data_folder_of(resolved.name, data).root
        program = program_name()
        again = f"{program} {shlex.join(word for word in sys.argv[1:] if word != '--new-recipe')}"
        request = UpRequest(resolved, folder, summary, new_recipe, plain, program, again, branch, forks=forks)
        raise typer.Exit(bring_up(request, open_console(outlives_reader=True)))
    finally:
        forks.stop()


def try_recipe(  # noqa: PLR0913, PLR0917 - options, each given by its name
    recipe: Annotated[str, typer.Argument(help="A shipped recipe by name, or the path of a TOML file.")],
    sets: SetOption = None,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks of each workflow.")] = 2,
    workflow: Annotated[str | None, typer.Option(help="The only workflow to play; default: all.")] = None,
    answers: Annotated[
        list[str] | None,
        typer.Option(
            "--answer",
            metavar="[POLICY=]TEXT",
            help="Text that the policy answers instead of generating. Repeatable: each call takes the next text.",
        ),
    ] = None,
    api: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Let a model behind an OpenAI-compatible endpoint play, such as http://localhost:8000/v1, one episode "
            "of each task. Needs --model; the key is taken from OPENAI_API_KEY.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the endpoint's model.")] = None,
    as_json: JsonOption = False,
) -> None:
    r"""Play a few episodes of a recipe and take one step of its trainer, in seconds: no servers, no run.

    Use it while you write an environment, a workflow, a data algorithm, an advantage or a loss. It prints the
    conversation, the tokens and which of them are trained on, rewards, what the chain keeps, advantages, and loss and
    gradient norm of one optimizer step. If your code raises, the traceback begins at your own line, with task, role
    and turn. There is no warm start, so a new model answers at random.

    Exit code 1 when an episode or a data algorithm failed, or a group was malformed.

    Example: [bold]headrace try arithmetic[/]

    With --answer the policy gives your answers, so that you can test a scorer on right and on wrong ones.

    Example: [bold]headrace try my-run.toml --answer '\boxed{7}' --answer 'no idea' --set rollout.group_size=2[/]

    With --api nothing is trained: you see how a finished model plays your environment.

    Recipes for tiny policies allow few tokens for an answer: give a finished model more.

    Example: [bold]headrace try tools --api http://localhost:8000/v1 --model qwen3 --set rollout.max_tokens=512[/]
    """
    from headrace.infra.recipe.recipe_file import load_recipe

    log_quietly()
    loaded = load_recipe(recipe, sets or ())  # errors in the recipe are reported before torch is loaded
    from headrace.app.views.trial_page import trial_page
    from headrace.ops.offline.trial import TrialRequest
    from headrace.ops.offline.trial import try_recipe as play
    from headrace.ops.offline.watched_play import exit_if_busy

    request = TrialRequest(loaded, tasks, workflow, answers or ())
    found: Tried | ApiTried
    if bool(api) != bool(model):
        raise UsageError("--api URL and --model NAME belong together: give both or none")
    if api and model:
        from headrace.app.views.api_trial_page import api_trial_page
        from headrace.ops.offline.api_policy import Api
        from headrace.ops.offline.api_trial import try_with_api

        endpoint = Api(api, model, read_environment(API_KEY_VARIABLE))
        found = try_with_api(request, endpoint, lambda words: typer.echo(words, err=True))
        print_answer(found, api_trial_page, as_json=as_json)
    else:
        found = play(request, lambda words: typer.echo(words, err=True))
        print_answer(found, trial_page, as_json=as_json)
    exit_if_busy(0 if found.is_sound else CHECK_FAILED)
    if not found.is_sound:
        raise typer.Exit(CHECK_FAILED)


def check_engine(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe by name, or the path of a TOML file.")],
    sets: SetOption = None,
    policy: PolicyChoice = None,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Largest allowed mean difference of the engine's log-probabilities to those of a plain forward pass.",
        ),
    ] = 0.01,
    limit: Annotated[
        float,
        typer.Option(
            min=1.0,
            metavar="SECONDS",
            help="Time limit of each check; a large model needs more time, to load its weights.",
        ),
    ] = 300.0,
    as_json: JsonOption = False,
) -> None:
    """Check whether the engine of a recipe keeps what an engine promises. Needs no Kafka, no store and no run.

    The engine is opened with the recipe's model: your own `package.module:function`, or SGLang or vLLM servers with
    your arguments on your GPUs. Weights are swapped while requests run, and the log-probability of every token is
    recomputed by a plain forward pass with the weights of the version that the token names.

    In float32, servers and a plain pass differ by less than 0.00001. In bfloat16, they differ by 0.01 or more: give
    --tolerance 0.03.

    Exit code 1 when a promise is broken.

    Example: [bold]headrace check-engine my-run.toml[/]

    Example: [bold]headrace check-engine arithmetic --set 'rollout.engine="my_package.engine:open"'[/]
    """
    from headrace.infra.recipe.recipe_file import load_recipe

    log_quietly()
    loaded = load_recipe(recipe, sets or ())
    from headrace.app.views.engine_check_page import format_check
    from headrace.ops.engine_check.engine_check import EngineCheckRequest
    from headrace.ops.engine_check.engine_check import check_engine as check

    console, found = open_console(), []
    for one in check(EngineCheckRequest(loaded, policy, tolerance, limit)):
        found.append(one)
        if not as_json:
            console.print(format_check(one), highlight=False, soft_wrap=True)
    if as_json:
        print_json(found)
    if any(one.verdict == "broken" for one in found):
        raise typer.Exit(CHECK_FAILED)


def check_tasks(
    path: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Folder of Harbor tasks, or of one.")],
    at_once: Annotated[int, typer.Option(min=1, help="Tasks that are checked at a time.")] = 2,
    as_json: JsonOption = False,
) -> None:
    """Check the tasks of a folder in boxes: the solution of each gets a reward of 1, and doing nothing does not.

    Exit code 1 when a task is wrong, or cannot be read.

    Example: [bold]headrace check-tasks tasks/[/]
    """
    import asyncio

    from headrace.app.views.task_checks_page import task_checks_page
    from headrace.envs.harbor.checking import check_tasks as check

    log_quietly()
    found = asyncio.run(check(path.resolve(), at_once))
    print_answer(found, task_checks_page, as_json=as_json)
    if any(one.fault for one in found):
        raise typer.Exit(CHECK_FAILED)


def swap(
    chain: Annotated[Path, typer.Argument(metavar="CHAIN.toml", help="TOML file with only a chain, as in a recipe.")],
    run: RunChoice = None,
    data: DataChoice = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the chain, and change nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Change a run's chain of data algorithms while it runs, as the next revision of its recipe.

    Tasks issued after the swap go through the new chain, earlier tasks through the old chain. The run does not stop,
    and no group is lost or trained twice. A stopped run resumes with the new chain.

    Your own data algorithm must be importable wherever a curator runs: until then, the groups of the new chain wait.
    The hash of its source is recorded, so an edited algorithm counts as another chain.

    Example: [bold]headrace swap --run kafka://127.0.0.1:9092/arithmetic new_chain.toml[/]
    """
    from headrace.app.views.tables import swap_lines
    from headrace.ops.opened_run import open_run
    from headrace.ops.swap import swap as swap_chain

    log_quietly()
    with open_run(run, data) as opened:
        print_answer(swap_chain(opened.run, chain, dry_run=dry_run), swap_lines, as_json=as_json)


def compare(
    sweep: Annotated[str, typer.Argument(metavar="SWEEP.toml", help="A sweep file, or a shipped sweep by name.")],
    curve: Annotated[
        bool,
        typer.Option(
            "--curve",
            help="Take a recipe in place of a sweep, and show whether it learns: three seeds, and a control with a "
            "learning rate of 0.",
        ),
    ] = False,
    recipe: Annotated[
        str, typer.Option(metavar="NAME", help="Recipe in place of the sweep's `recipe`.", show_default=False)
    ] = "",
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Data folder.", show_default=".headrace/<sweep>")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw the curves there, and write FILE.html with table and picture."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run variants of recipes over several seeds on one Kafka and one store, and compare their results.

    Prints a line per run on standard error, then a table: means over seeds with 95 % intervals. Give the same command
    again to resume: finished runs are not repeated. Exit code 1 when a run failed; the others still count.

    Example: [bold]headrace compare efficient-data --plot efficient-data.png[/]

    Example: [bold]headrace compare --curve tools[/]
    """
    from rich.markup import escape

    from headrace.app.views.comparison_page import comparison_page
    from headrace.infra.atomic_files import write_atomically
    from headrace.infra.embedded.data_folder import HOME
    from headrace.infra.process.signals import INTERRUPTED
    from headrace.ops.compare.comparison import build_comparison
    from headrace.ops.compare.sweep import play
    from headrace.ops.compare.sweep_file import build_curve, load_sweep
    from headrace.ops.plain_json import encode_json

    log_quietly()
    if curve and recipe:
        raise UsageError("--curve takes a recipe in place of a sweep: name it there, without --recipe")
    asked, runs = build_curve(sweep) if curve else load_sweep(sweep, recipe)
    if plot is not None:
        from headrace.app.views.chart import check_picture

        check_picture(plot, ".png")
    folder = data or HOME / asked.name
    console = open_console(outlives_reader=True, on_stderr=True)

    def say(words: str) -> None:
        console.print(words, highlight=False, soft_wrap=True)

    try:
        results = play(asked, runs, folder, say)
    except KeyboardInterrupt:
        say(f"Stopped. Give the same command again to resume from {escape(str(folder))}.")
        raise typer.Exit(INTERRUPTED) from None
    found = build_comparison(asked.name, asked.about, results)
    write_atomically(folder / "comparison.json", encode_json(found).encode())
    if plot is not None:
        from headrace.app.views.comparison_page import plot as draw

        report_written(draw(found, plot))
    print_answer(found, comparison_page, as_json=as_json)
    if any(run.summary is None for run in results.values()):
        raise typer.Exit(CHECK_FAILED)
