"""`headrace retrain`: train on the recorded batches again, to compare hashes or to try other settings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
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
    program_name,
)
from headrace.infra.errors import UsageError
from headrace.schemas.topics import check_name

if TYPE_CHECKING:
    from headrace.ops.offline.experiment import Experiment
    from headrace.ops.offline.retrain import Retrained


def retrain(  # noqa: PLR0913, PLR0917 - options, each given by its name
    run: RunChoice = None,
    data: DataChoice = None,
    policy: PolicyChoice = None,
    variant: VariantChoice = None,
    begin: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=0,
            metavar="V",
            help="Begin at the newest checkpoint of version V or below; default: the oldest checkpoint.",
        ),
    ] = None,
    end: Annotated[
        int | None, typer.Option("--to", min=1, metavar="W", help="End with version W; default: the newest.")
    ] = None,
    into: Annotated[
        str | None, typer.Option(metavar="NAME", help="Store the versions as a new run: an offline experiment.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="With --into: --set trainer.learning_rate=1e-5. Repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train on the recorded batches again from a checkpoint and compare every weight hash, or try other settings.

    Exit code 0 when all are equal, 1 when one differs, 2 for impossible versions
    or settings, 3 without a verdict: this machine or its software cannot give
    the same bits, or Kafka, the store or their data is unreachable.

    Example: [bold]headrace retrain --data .headrace/arithmetic[/]

    Example: [bold]headrace retrain --data .headrace/arithmetic --into slower --set trainer.learning_rate=1e-4[/]

    For a run trained under torchrun, use as many processes as it had:
    torchrun --nproc-per-node 8 --no-python -- headrace retrain ...

    --into makes a run on the same cluster: look at it with --run NAME and the --data of its source.

    Example: [bold]headrace inspect --step 3 --data .headrace/arithmetic --run slower[/]
    """
    from headrace.app.views.offline_page import retrain_page
    from headrace.infra.progress import open_progress
    from headrace.ops.opened_run import open_run

    log_quietly()
    _check_retrain((begin, end), into, sets or ())
    found: Retrained | Experiment
    # outermost: after an unexpected error the other processes are in the middle of a step, and must not be asked again
    with exit_without_verdict_on_error(), _continue_in_leading_process(), open_run(run, data, store=True) as opened:
        policy_variant = opened.run.resolve(policy, variant)
        with open_progress("versions trained again") as tell:
            if into is None:
                from headrace.ops.offline.retrain import retrain as train_again

                found = train_again(opened.run, policy_variant, (begin, end), tell)
            else:
                from headrace.ops.offline.experiment import train_experiment

                found = train_experiment(opened.run, policy_variant, (into, tuple(sets or ())), (begin, end), tell)
        page = partial(retrain_page, program=program_name(), where=_name_options(into or "", run, data))
        print_answer(found, page, as_json=as_json)
    if any(version.equal is False for version in found.versions) and into is None:
        raise typer.Exit(CHECK_FAILED)
    if not found.comparable:
        raise typer.Exit(NO_VERDICT)


def _name_options(name: str, run: str | None, data: Path | None) -> str:
    """Return the options that name another run of the same cluster, in the form used for this one."""
    cluster, slash, _ = (run or "").rpartition("/")
    return f"--run {cluster}{slash}{name}" + (f" --data {shlex.quote(str(data))}" if data else "")


def _check_retrain(span: tuple[int | None, int | None], into: str | None, sets: Sequence[str]) -> None:
    """Refuse options that are wrong for every run, before anything is started."""
    from headrace.infra.recipe.trainer_words import check_trainer_words

    begin, end = span
    if begin is not None and end is not None and begin >= end:
        raise UsageError(
            f"--from {begin} --to {end}: --to must be above --from, because the version after --from is made first"
        )
    if into is None and sets:
        raise UsageError("--set needs --into NAME, the name of a new run, because other settings make other weights")
    check_trainer_words(sets)
    if into is not None:
        try:
            check_name("run", into)
        except ValueError as error:
            raise UsageError(f"--into {into}: {error}") from error


def _continue_in_leading_process() -> AbstractContextManager[None]:
    """Continue in one of the processes that torchrun started; without torchrun nothing heavy is imported."""
    from headrace.infra.environment import is_single_process

    if is_single_process():
        return nullcontext()
    from headrace.trainers.learner.backends.group import lead_group

    return lead_group()
