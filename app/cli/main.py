"""The command line. Heavy imports happen inside the commands, after parsing: `headrace --help` is quick."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.app import workers
from headrace.app.cli.archive import archive, curate, export_trajectories, replay, train
from headrace.app.cli.compare import compare
from headrace.app.cli.data import discards, evaluate, swap
from headrace.app.cli.options import (
    FAILED,
    JSON,
    DataChoice,
    JsonOption,
    PolicyChoice,
    RunChoice,
    RunOption,
    SetOption,
    VariantChoice,
    answer,
    log_quietly,
    open_console,
)
from headrace.app.cli.servers import clean, doctor, store_policy, topics
from headrace.app.cli.weights import app as weights_app
from headrace.infra.errors import HeadraceError, UsageError
from headrace.schemas.topics import check_name

NO_VERDICT = 3


class NoVerdict(HeadraceError):
    """A run could not be read, so nothing is proven of it."""

    exit_code = NO_VERDICT


app = typer.Typer(
    name="headrace",
    help="Train LLM agents by reinforcement learning in which every step is a Kafka topic.\n\n"
    "Begin with [bold]headrace up arithmetic[/]: it starts a Kafka and an object store of its own and trains a tiny "
    "model in about a minute and a half. [bold]headrace doctor[/] tells whether this machine has what it takes.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

LOOK = "Look"
RUN = "Run"
PARTS = "Parts of a run, each a process of its own"

app.add_typer(weights_app, name="weights", rich_help_panel=LOOK)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"headrace {version('headrace')}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


# ------------------------------------------------------------------------------------------------------------------ run


@app.command(rich_help_panel=RUN)
def up(  # noqa: PLR0913, PLR0917 - options, each given by its name
    recipe: Annotated[str, typer.Argument(help="A shipped recipe by name, or the path of a TOML file.")],
    sets: SetOption = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Data folder.", show_default=".headrace/<run>")
    ] = None,
    summary: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the summary there, as JSON.")] = None,
    new_recipe: Annotated[
        bool, typer.Option("--new-recipe", help="Record a changed recipe as a revision of a run that is there.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of the live page.")] = False,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="ARCHIVE", help="Play nothing: learn from what an archive holds. No servers."),
    ] = None,
) -> None:
    """Run a recipe to its end: servers, components, live page, summary. The same command goes on where it stopped.

    Example: [bold]headrace up arithmetic --set trainer.steps=40 --summary summary.json[/]

    With --from, the archived trajectories go through the recipe's chain, its trainer learns from what is kept, and
    versions are played on held-out problems.

    On the page,
      [bold]rolling[/], [bold]behind[/]: a worker plays; its weights are too old to play with
      [bold]staleness[/]: versions by which tokens are older than the weights they train
      [bold]log-probability gap[/]: of engine and trainer, on tokens of the same weights
      [bold]zero_variance[/]: all members had one reward, so nothing is learnt
      [bold]run_end[/]: a group that was not trained on before the run was over
      a worker's groups: all that it finished, evaluations too
      a dot in the chart: a version of which no group came
    """
    from headrace.app.launcher.launcher import Order
    from headrace.app.launcher.launcher import up as bring_up
    from headrace.infra.embedded.data_folder import data_folder_of
    from headrace.infra.recipe.recipe_file import load_recipe

    resolved = load_recipe(recipe, sets or ())
    folder = data_folder_of(f"{resolved.name}-offline" if source else resolved.name, data).root
    if source is not None:
        from headrace.ops.offline.offline_run import OfflineOrder, run_offline

        if new_recipe:
            raise UsageError("--from begins an experiment of its own: --new-recipe is for runs")
        log_quietly()
        answer(run_offline(OfflineOrder(resolved, source, folder, summary)), workers.SHOW_OFFLINE, as_json=False)
        return
    program = _program()
    again = f"{program} {shlex.join(word for word in sys.argv[1:] if word != '--new-recipe')}"
    order = Order(resolved, folder, summary, new_recipe, plain, program, again)
    raise typer.Exit(bring_up(order, open_console()))


app.command(rich_help_panel=RUN)(clean)


# ---------------------------------------------------------------------------------------------------------------- parts


@app.command(rich_help_panel=PARTS)
def feed(run: RunOption) -> None:
    """Issue tasks at the pace of the trainers; one per run.

    Example: [bold]headrace feed --run kafka://127.0.0.1:9092/arithmetic[/]
    """
    workers.find(workers.FEED)(run)


@app.command(rich_help_panel=PARTS)
def rollout(
    run: RunOption,
    workflow: Annotated[str | None, typer.Option(help="Which workflow to play; the only one if not given.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of this worker; host and pid if not given.")] = None,
    region: Annotated[str, typer.Option(help="Where it stands.")] = "",
    concurrency: Annotated[int | None, typer.Option(min=1, help="Episodes at once, instead of the recipe's.")] = None,
) -> None:
    """Play tasks and produce trajectories; start as many as you like, any time, on any machine.

    Example: [bold]headrace rollout --run kafka://127.0.0.1:9092/arithmetic[/]
    """
    workers.find(workers.ROLLOUT)(run, workflow, name, region, concurrency)


for _of_either in (curate, train):
    app.command(rich_help_panel=PARTS)(_of_either)


app.command(rich_help_panel=PARTS)(evaluate)


@app.command(rich_help_panel=PARTS)
def compact(
    run: RunChoice = None,
    data: DataChoice = None,
    policy: Annotated[str | None, typer.Option("--policy", help="Whose deltas; all policies' if not given.")] = None,
    every: Annotated[int, typer.Option(min=1, help="How many deltas may go unmerged.")] = 16,
    once: Annotated[bool, typer.Option("--once", help="Merge what there is now, and end.")] = False,
) -> None:
    """Merge deltas, so that a worker that joins hundreds of versions behind fetches a few objects.

    Beside a run or after it, any time, on any machine; nothing depends on it.

    Example: [bold]headrace compact --data .headrace/arithmetic --once[/]
    """
    workers.find(workers.COMPACT)(run, data, policy, every, once=once)


# ----------------------------------------------------------------------------------------------------------------- look


@app.command(rich_help_panel=LOOK)
def status(run: RunChoice = None, data: DataChoice = None, as_json: JsonOption = False) -> None:
    """Say how a run is doing: versions, groups, lag, workers. Of a run that rests, its broker is started for it.

    Example: [bold]headrace status --data .headrace/arithmetic[/]
    """
    from headrace.ops.opened_run import opened_run

    log_quietly()
    with opened_run(run, data) as opened:
        figures = workers.find(workers.STATUS)(opened.run, rests=opened.rests)
        answer(figures, workers.SHOW_STATUS, as_json=as_json)


@app.command(rich_help_panel=LOOK)
def audit(
    run: RunChoice = None,
    data: DataChoice = None,
    deep: Annotated[bool, typer.Option("--deep", help="Decode every group too, and read every object.")] = False,
    no_store: Annotated[bool, typer.Option("--no-store", help="Leave the object store out.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Prove from topics and store that nothing was lost, trained twice or broken.

    Exit code 0 when the audit closes, 1 when it does not, 3 when the run cannot be read and so nothing is proven.

    Every number concludes once per policy, every kept group is trained or evicted, every version follows from the one
    before it, every announced object is there and hashes right.

    Example: [bold]headrace audit --data .headrace/arithmetic --json[/]
    """
    from headrace.ops.opened_run import opened_run

    log_quietly()
    with _or_no_verdict(), opened_run(run, data, store=not no_store) as opened:
        report = workers.find(workers.AUDIT)
        found: dict[str, Any] = report(opened.run, rests=opened.rests, deep=deep, use_store=not no_store)
        answer(found, workers.SHOW_AUDIT, as_json=as_json)
    if not found["ok"]:
        raise typer.Exit(FAILED)


@app.command("dead-letters", rich_help_panel=LOOK)
def dead_letters(
    run: RunChoice = None,
    data: DataChoice = None,
    reason: Annotated[str | None, typer.Option(help="Only letters of this reason.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Show this one with its bytes.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List what could not be read: where it came from, why, and whether it was sent back; or show one.

    A letter that was sent back names the one of reason `redriven` that says so, and the new one where it failed again.

    Example: [bold]headrace dead-letters --data .headrace/arithmetic --offset 3[/]
    """
    from headrace.ops.opened_run import opened_run

    log_quietly()
    with opened_run(run, data) as opened:
        if offset is None:
            letters = workers.find(workers.LETTERS)(opened.run, reason)
            answer(letters, workers.SHOW_LETTERS, reason, as_json=as_json)
        else:
            answer(workers.find(workers.LETTER)(opened.run, offset), workers.SHOW_LETTER, as_json=as_json)


@app.command(rich_help_panel=RUN)
def redrive(
    run: RunChoice = None,
    data: DataChoice = None,
    offset: Annotated[list[int] | None, typer.Option(help="Offset of a dead letter. Repeatable.")] = None,
    reason: Annotated[str | None, typer.Option(help="Only letters of this reason.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent back, and send nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters back to where they came from, after a fix: their numbers are open again.

    Each letter is sent back once. What fails again is a new letter, which names the first and can be sent back in turn.

    Exit code 1 when a letter that --offset names is refused, as no fix would help it, or when the run has ended.

    Example: [bold]headrace redrive --data .headrace/arithmetic --reason missing_object --dry-run[/]
    """
    from headrace.ops.opened_run import opened_run

    log_quietly()
    with opened_run(run, data) as opened:
        done: dict[str, Any] = workers.find(workers.REDRIVE)(opened.run, offset or (), reason, dry_run=dry_run)
        answer(done, workers.SHOW_REDRIVE, as_json=as_json)
    if offset and done["refused"]:
        raise typer.Exit(FAILED)


@app.command(rich_help_panel=RUN)
def gc(  # noqa: PLR0913, PLR0917 - options, each given by its name
    run: RunChoice = None,
    data: DataChoice = None,
    keep_versions: Annotated[
        int,
        typer.Option(min=1, help="Newest versions whose weights stay; no fewer than 64, as workers begin with those."),
    ] = 64,
    keep_checkpoints: Annotated[
        int | None, typer.Option(min=1, help="Newest checkpoints that stay; all if not given.", show_default=False)
    ] = None,
    older_than: Annotated[
        str, typer.Option(metavar="AGE", help="Spare what is younger: 36h, 2d. Less than 1d only of a run that rests.")
    ] = "1d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and delete nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete the objects of a run that nothing needs any more, as its topics tell.

    Those are: objects that no record names, as crashes leave them; weights of versions that no worker begins with; with
    --keep-checkpoints older checkpoints. The first version and its checkpoint stay for ever, groups and files always.

    What was named is retired first, by a record, so that `audit` and `retrain` know. When a record cannot be known,
    nothing is deleted.

    Example: [bold]headrace gc --data .headrace/arithmetic --dry-run[/]
    """
    from headrace.infra.durations import duration_of
    from headrace.ops.opened_run import opened_run

    log_quietly()
    age = duration_of(older_than)
    with opened_run(run, data, store=True) as opened:
        keep = (keep_versions, keep_checkpoints)
        found = workers.find(workers.COLLECT)(opened.run, keep, age, dry_run=dry_run, rests=opened.rests)
        answer(found, workers.SHOW_COLLECTED, as_json=as_json)


@app.command(rich_help_panel=LOOK)
def lineage(  # noqa: PLR0913, PLR0917 - options, each given by its name
    version: Annotated[int | None, typer.Option(min=0, help="A version: the groups that made it.")] = None,
    group: Annotated[
        str | None, typer.Option(metavar="STREAM:NUMBER", help="A group: the versions that it trained, or its end.")
    ] = None,
    policy: PolicyChoice = None,
    variant: VariantChoice = None,
    run: RunChoice = None,
    data: DataChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Say which groups made a version, or what became of a group, from the topics alone.

    Example: [bold]headrace lineage --version 3 --data .headrace/arithmetic[/]
    """
    from headrace.ops.opened_run import opened_run

    log_quietly()
    if (version is None) == (group is None):
        raise UsageError("give either --version V or --group STREAM:NUMBER, as in --group sums:12")
    if group is not None and not re.fullmatch(r"[^:]+:\d+", group):
        raise UsageError(f"--group {group!r} names no group: write STREAM:NUMBER, as in --group sums:12")
    report, show, asked = (
        (workers.LINEAGE_OF_VERSION, workers.SHOW_VERSION, version)
        if version is not None
        else (workers.LINEAGE_OF_GROUP, workers.SHOW_GROUP, group)
    )
    with opened_run(run, data, store=True) as opened:
        answer(workers.find(report)(opened.run, opened.run.line(policy, variant), asked), show, as_json=as_json)


@app.command(rich_help_panel=LOOK)
def inspect(  # noqa: PLR0913, PLR0917 - options, each given by its name
    step: Annotated[int | None, typer.Option(min=0, help="A step, by the version that came out of it.")] = None,
    trajectory: Annotated[
        str | None, typer.Option(metavar="STREAM:NUMBER:SAMPLE", help="One trajectory, trained or not, token by token.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Of the step, one group: its place, or STREAM:NUMBER.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, help="How many groups (4), or tokens (400); 0 for all.", show_default=False)
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
    from headrace.ops.opened_run import opened_run

    log_quietly()
    if (step is None) == (trajectory is None):
        raise UsageError("give either --step VERSION or --trajectory STREAM:NUMBER:SAMPLE, as in sums:12:0")
    if group is not None and step is None:
        raise UsageError("--group chooses a group of a step: give --step VERSION with it")
    if trajectory is not None and not re.fullmatch(r"[^:]+:\d+:\d+", trajectory):
        raise UsageError(f"--trajectory {trajectory!r} names none: write STREAM:NUMBER:SAMPLE, as in sums:12:0")
    with opened_run(run, data, store=True) as opened:
        line = opened.run.line(policy, variant)
        if step is not None:
            found = workers.find(workers.INSPECT_STEP)(opened.run, line, step, group, 4 if limit is None else limit)
            answer(found, workers.SHOW_STEP, as_json=as_json)
        else:
            found = workers.find(workers.INSPECT_TRAJECTORY)(opened.run, line, trajectory)
            answer(found, workers.SHOW_TRAJECTORY, 400 if limit is None else limit, as_json=as_json)


@app.command(rich_help_panel=LOOK)
def retrain(  # noqa: PLR0913, PLR0917 - options, each given by its name
    run: RunChoice = None,
    data: DataChoice = None,
    policy: PolicyChoice = None,
    variant: VariantChoice = None,
    begin: Annotated[
        int | None,
        typer.Option(
            "--from", min=0, metavar="V", help="Begin at the newest checkpoint at or below V; the oldest if not given."
        ),
    ] = None,
    end: Annotated[
        int | None, typer.Option("--to", min=1, metavar="W", help="End with version W; the newest if not given.")
    ] = None,
    into: Annotated[
        str | None, typer.Option(metavar="NAME", help="Make a new run of the versions: an offline experiment.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="With --into: --set trainer.learning_rate=1e-5. Repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train the recorded batches again from a checkpoint and compare every weight hash, or try other settings on them.

    Exit code 0 when all are equal, 1 when one differs, 2 for versions or settings
    that cannot be, 3 without a verdict: this machine or its software cannot give
    the same bits, or Kafka, the store or what was in them is away.

    Example: [bold]headrace retrain --data .headrace/arithmetic[/]

    Example: [bold]headrace retrain --data .headrace/arithmetic --into slower --set trainer.learning_rate=1e-4[/]

    What torchrun trained, as many processes make again: torchrun --nproc-per-node 8 --no-python -- headrace retrain ...

    What --into makes is a run on the same cluster: look at it with --run NAME beside the --data of its source.

    Example: [bold]headrace inspect --step 3 --data .headrace/arithmetic --run slower[/]
    """
    from headrace.infra.progress import progress
    from headrace.ops.opened_run import opened_run

    log_quietly()
    _check_retrain((begin, end), into, sets or ())
    with _leading(), _or_no_verdict(), opened_run(run, data, store=True) as opened:
        line = opened.run.line(policy, variant)
        with progress("versions trained again") as tell:
            if into is None:
                found: dict[str, Any] = workers.find(workers.RETRAIN)(opened.run, line, (begin, end), tell)
            else:
                experiment = workers.find(workers.EXPERIMENT)
                found = experiment(opened.run, line, (into, tuple(sets or ())), (begin, end), tell)
        answer(found, workers.SHOW_RETRAIN, _program(), _options_of(into or "", run, data), as_json=as_json)
    if any(version["equal"] is False for version in found["versions"]) and into is None:
        raise typer.Exit(FAILED)
    if not found["comparable"]:
        raise typer.Exit(NO_VERDICT)


def _options_of(name: str, run: str | None, data: Path | None) -> str:
    """Return the options that name another run of a cluster, as this one was named."""
    cluster, slash, _ = (run or "").rpartition("/")
    return f"--run {cluster}{slash}{name}" + (f" --data {shlex.quote(str(data))}" if data else "")


def _check_retrain(span: tuple[int | None, int | None], into: str | None, sets: Sequence[str]) -> None:
    """Refuse what cannot be whatever the run, before anything is started for it."""
    from headrace.infra.recipe.recipe_file import check_trainer_words

    begin, end = span
    if begin is not None and end is not None and begin >= end:
        raise UsageError(
            f"--from {begin} --to {end}: the first must be below the second, as its successor is made first"
        )
    if into is None and sets:
        raise UsageError("--set asks for other settings, so other weights come out: name a run for them by --into")
    check_trainer_words(sets)
    if into is not None:
        try:
            check_name("run", into)
        except ValueError as error:
            raise UsageError(f"--into {into}: {error}") from error


@weights_app.callback(invoke_without_command=True)
def weights(
    context: typer.Context,
    run: RunChoice = None,
    data: DataChoice = None,
    policy: PolicyChoice = None,
    variant: VariantChoice = None,
    as_json: JsonOption = False,
) -> None:
    """How a run's versions were published: whole or as deltas, how large, how long it took, and who serves which.

    The commands below make one version a folder, and deltas between folders with no run needed.

    Example: [bold]headrace weights --data .headrace/arithmetic[/]
    """
    if context.invoked_subcommand is not None:
        return
    from headrace.ops.opened_run import opened_run

    log_quietly()
    with opened_run(run, data) as opened:
        line = opened.run.line(policy, variant)
        answer(workers.find(workers.WEIGHTS_HISTORY)(opened.run, line), workers.SHOW_WEIGHTS, as_json=as_json)


@weights_app.command()
def export(  # noqa: PLR0913, PLR0917 - options, each given by its name
    out: Annotated[Path, typer.Argument(metavar="OUT_DIR", help="Folder to write, whole or not at all.")],
    version: Annotated[int | None, typer.Option("--version", help="Which version; the newest if not given.")] = None,
    run: RunChoice = None,
    data: DataChoice = None,
    policy: PolicyChoice = None,
    variant: VariantChoice = None,
    as_json: JsonOption = False,
) -> None:
    """Write one version of a run as a folder in Hugging Face's layout, config and tokenizer beside the weights.

    Example: [bold]headrace weights export trained/ --data .headrace/arithmetic[/]
    """
    from headrace.ops.opened_run import opened_run
    from headrace.ops.weights_export import export

    log_quietly()
    with opened_run(run, data, store=True) as opened:
        found = export(opened.run, opened.run.line(policy, variant), version, out)
    told = {"version": found.version, "weights_hash": found.weights_hash}
    typer.echo(json.dumps(told) if as_json else f"{out}: version {found.version}, weights hash {found.weights_hash}")


app.command(rich_help_panel=LOOK)(discards)
app.command(rich_help_panel=RUN)(swap)
for _of_runs in (archive, replay, compare):
    app.command(rich_help_panel=RUN)(_of_runs)
app.command("export", rich_help_panel=RUN)(export_trajectories)
for _of_servers in (topics, store_policy, doctor):
    app.command(rich_help_panel=LOOK)(_of_servers)


@contextmanager
def _or_no_verdict() -> Iterator[None]:
    """End with NO_VERDICT where the block could not say what was asked for."""
    try:
        yield
    except (UsageError, BrokenPipeError):
        raise
    except (HeadraceError, OSError) as error:
        raise NoVerdict(str(error)) from error


def _leading() -> AbstractContextManager[None]:
    """Go on in one of the processes that torchrun started; without it nothing heavy is imported for that."""
    from headrace.infra.environment import is_alone

    leading: Callable[[], AbstractContextManager[None]] = nullcontext if is_alone() else workers.find(workers.LEADING)
    return leading()


def _program() -> str:
    """Return how this user calls the command: by its name where the shell finds it, else as it was called now."""
    called = Path(sys.argv[0])
    if called.suffix == ".py":
        return shlex.join([sys.executable, "-m", "headrace"])
    return called.name if shutil.which(called.name) else str(called)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; errors raised on purpose become one message and an exit code, and with --json JSON too."""
    try:
        app(args=None if arguments is None else list(arguments))
    except (HeadraceError, OSError) as error:
        from headrace.infra.environment import LOG_LEVEL_VARIABLE, environment

        if environment(LOG_LEVEL_VARIABLE) == "debug":
            raise
        typer.echo(f"error: {error}", err=True)
        if JSON in (sys.argv[1:] if arguments is None else arguments):
            typer.echo(json.dumps({"error": str(error)}))
        sys.exit(error.exit_code if isinstance(error, HeadraceError) else FAILED)


if __name__ == "__main__":
    main()
