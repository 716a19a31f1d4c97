"""Commands that take a run's topics out of Kafka and bring them back; and those that read either."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.app import workers
from headrace.app.cli.options import (
    RUN_ADDRESS,
    DataChoice,
    JsonOption,
    RunChoice,
    VariantChoice,
    answer,
    log_quietly,
)
from headrace.infra.errors import UsageError

TopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topics",
        metavar="TOPIC",
        help="Without the run's name: trajectories.solver. Repeatable; all that are not compacted if not given.",
    ),
]


def archive(
    out: Annotated[
        str,
        typer.Option(
            "--out",
            metavar="ARCHIVE",
            help="Folder, s3://BUCKET/PREFIX, or store:PREFIX in the run's own store; one archive holds one run.",
        ),
    ],
    run: RunChoice = None,
    data: DataChoice = None,
    topics: TopicsOption = None,
    with_weights: Annotated[
        bool, typer.Option("--with-weights", help="Also the objects of weights and checkpoints, and `state`.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Move topics of a run into Avro files; given again, only what is new since.

    Any Avro tool reads the files. Objects that trajectories need are copied too, so the archive stands alone. Beside a
    run that goes on or after it; killed at any moment, it goes on with the same records, none missing and none twice.

    Example: [bold]headrace archive --data .headrace/arithmetic --out sums.archive[/]

    Example: [bold]headrace archive --run kafka://... --out s3://archives/sums[/]
    """
    from headrace.ops.opened_run import opened_run

    log_quietly()
    with opened_run(run, data, store=True) as opened:
        done = workers.find(workers.ARCHIVE)(opened.run, out, topics or (), with_weights=with_weights)
        answer(done, workers.SHOW_ARCHIVED, as_json=as_json)


def replay(
    source: Annotated[
        str, typer.Argument(metavar="ARCHIVE", help="Folder or s3://BUCKET/PREFIX that `headrace archive` made.")
    ],
    into: Annotated[
        str | None, typer.Option("--into", metavar="ADDRESS", help="kafka://HOST:PORT/RUN, the run's name as it was.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="A new folder for a Kafka and a store of its own.")
    ] = None,
    topics: TopicsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Feed an archive into a Kafka that does not hold the run: topics, keys, headers, times and order as they were.

    Offsets are new. Killed at any moment and given again, it goes on where it stopped; topics that hold anything else
    are refused.

    Example: [bold]headrace replay sums.archive --data .headrace/again[/]
    """
    log_quietly()
    done = workers.find(workers.REPLAY)(source, into, data, topics or ())
    answer(done, workers.SHOW_REPLAYED, as_json=as_json)


def export_trajectories(
    source: Annotated[
        str, typer.Argument(metavar="ARCHIVE", help="Folder or s3://BUCKET/PREFIX that `headrace archive` made.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="FILE.parquet", help="New file.")],
    policy: Annotated[str | None, typer.Option("--policy", help="Whose; the only policy's if not given.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write an archive's trajectories as a Parquet file, with what became of each; needs the extra parquet.

    A row has ids, tokens, log-probabilities, versions, rewards, outcome and reason of one sequence. Texts are there
    where the archive was made with --with-weights, as the tokenizer lies beside the weights.

    Example: [bold]headrace export sums.archive --to sums.parquet[/]
    """
    log_quietly()
    answer(workers.find(workers.EXPORT)(source, policy, to), workers.SHOW_EXPORTED, as_json=as_json)


def curate(  # noqa: PLR0913, PLR0917 - options, each given by its name
    run: Annotated[str | None, RUN_ADDRESS] = None,
    policy: Annotated[
        str | None, typer.Option(help="Whose groups; if not given, the only policy's, and with --from all policies'.")
    ] = None,
    variant: VariantChoice = None,
    slot: Annotated[str | None, typer.Option(help="Its place under a supervisor: a successor fences it.")] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="ARCHIVE", help="Instead of a run: what `headrace archive` made.")
    ] = None,
    chain: Annotated[
        Path | None, typer.Option(metavar="CHAIN.toml", help="With --from: another chain than the run's own.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="With --from: new archive to write.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Decide by the recipe's chain which groups are trained on, of a run or offline over an archive.

    Example: [bold]headrace curate --run kafka://127.0.0.1:9092/arithmetic --policy solver[/]

    Example: [bold]headrace curate --from sums.archive --chain chain.toml --out tried.archive[/]
    """
    if source is None:
        if run is None or chain or out or as_json:
            raise UsageError("give --run ADDRESS, or --from ARCHIVE and --out DIR; --chain and --json go with --from")
        workers.find(workers.CURATE)(run, policy, slot, variant)
        return
    if run or slot or out is None:
        raise UsageError("--from ARCHIVE needs --out DIR, and neither --run nor --slot: no run is asked")
    if chain and variant:
        raise UsageError("--variant NAME asks for the chain of a shadow, --chain FILE for another: give one of them")
    log_quietly()
    done = workers.find(workers.CURATE_OFFLINE)(source, policy, chain, out, variant)
    answer(done, workers.SHOW_CURATED, as_json=as_json)


def train(  # noqa: PLR0913, PLR0917 - options, each given by its name
    run: Annotated[str | None, RUN_ADDRESS] = None,
    policy: Annotated[str | None, typer.Option(help="Whom to train; the only policy if not given.")] = None,
    variant: VariantChoice = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="ARCHIVE", help="Instead of a run: the archived curated groups of one."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --from: new folder, of the last weights and what became of each batch."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="With --from: --set trainer.learning_rate=1e-5. Repeatable."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="With --from: last version to make; trainer.steps of the recipe if not given."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE", help="With --from: archive or folder of weights to begin at; its oldest checkpoint if not."
        ),
    ] = None,
    batches: Annotated[
        bool, typer.Option("--batches", help="With --from: the run's own batches, as they were, and compare hashes.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Learn from curated groups and publish weights; one per policy, resumed where it stopped. Or over an archive.

    Example: [bold]headrace train --run kafka://127.0.0.1:9092/arithmetic --policy solver[/]

    On several GPUs or machines, with the weights in shards (FSDP2), under torchrun.

    Example: [bold]torchrun --nproc-per-node 8 --max-restarts 3 --no-python -- headrace train --run kafka://...[/]

    With no run: from archived groups into a folder that transformers loads, other settings as you like.

    Example: [bold]headrace train --from sums.archive --out tried --set trainer.learning_rate=1e-4[/]
    """
    if source is None:
        if run is None or out or sets or steps or start or batches or as_json:
            raise UsageError(
                "give --run ADDRESS, or --from ARCHIVE and --out DIR; "
                "--set, --steps, --start, --batches and --json go with --from"
            )
        workers.find(workers.TRAIN)(run, policy, variant)
        return
    if run or variant or out is None:
        raise UsageError("--from ARCHIVE needs --out DIR, and neither --run nor --variant: no run is asked")
    from headrace.infra.archive.reading import Archive
    from headrace.infra.progress import progress

    log_quietly()
    Archive(source)  # a place that holds none is told before torch is loaded
    wish = workers.find(workers.TRAINING_WISH)(policy, tuple(sets or ()), steps, start, batches)
    with progress("versions trained") as tell:
        found = workers.find(workers.TRAIN_OFFLINE)(source, out, wish, tell)
    answer(found, workers.SHOW_TRAINED, as_json=as_json)
