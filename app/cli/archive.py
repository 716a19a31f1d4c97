"""Commands that copy a run's topics out of Kafka, back into Kafka, and into a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.app.cli.options import DataChoice, JsonOption, RunChoice, answer, log_quietly

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
        bool | None,
        typer.Option(
            "--with-weights/--without-weights",
            help="Also copy the objects of weights and checkpoints, and `state`. If not given: a new archive of all "
            "topics copies them below 1 GiB, and asks above.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy topics of a run into Avro files; given again, only what is new since.

    Any Avro tool reads the files. Objects that trajectories need are copied too, and weights and checkpoints, so that
    one can train over the archive. Beside a running run or after it; killed at any moment, it continues with the same
    records, none missing, none twice. What the store did not have is added by the same command, and what an earlier
    --without-weights left out by --with-weights.

    Example: [bold]headrace archive --data .headrace/arithmetic --out sums.archive[/]

    Example: [bold]headrace archive --run kafka://... --out s3://archives/sums[/]
    """
    from headrace.app.views.offline_page import archive_page
    from headrace.ops.offline.archiver import archive as archive_run
    from headrace.ops.offline.archiver import refuse_to_choose
    from headrace.ops.opened_run import open_run

    log_quietly()
    with open_run(run, data, store=True) as opened:
        ask = _ask_for_weights if sys.stdin.isatty() else refuse_to_choose
        done = archive_run(opened.run, out, topics or (), with_weights=with_weights, ask=ask)
        answer(done, archive_page, as_json=as_json)


def _ask_for_weights(size_bytes: int) -> bool:
    return typer.confirm(f"Weights and checkpoints of this run are {size_bytes / 1e9:.1f} GB. Copy them too?", err=True)


def replay(
    source: Annotated[
        str, typer.Argument(metavar="ARCHIVE", help="Folder or s3://BUCKET/PREFIX that `headrace archive` made.")
    ],
    into: Annotated[
        str | None, typer.Option("--into", metavar="ADDRESS", help="kafka://HOST:PORT/RUN, with the run's old name.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="A new folder for its own Kafka and store.")
    ] = None,
    topics: TopicsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write an archive into a Kafka that does not hold the run: same topics, keys, headers, times and order.

    Offsets are new. Killed at any moment and given again, it continues where it stopped; topics that hold anything else
    are refused.

    Example: [bold]headrace replay sums.archive --data .headrace/again[/]
    """
    from headrace.app.views.offline_page import replay_page
    from headrace.ops.offline.replayer import replay as replay_archive

    log_quietly()
    answer(replay_archive(source, into, data, topics or ()), replay_page, as_json=as_json)


def export_trajectories(
    source: Annotated[
        str, typer.Argument(metavar="ARCHIVE", help="Folder or s3://BUCKET/PREFIX that `headrace archive` made.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="FILE.parquet", help="New file.")],
    policy: Annotated[str | None, typer.Option("--policy", help="Policy; the only one if not given.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write an archive's trajectories as a Parquet file, with the outcome of each; needs the extra parquet.

    A row has ids, tokens, log-probabilities, versions, rewards, outcome and reason of one sequence. Texts are there
    where the archive has weights, as the tokenizer lies beside them.

    Example: [bold]headrace export sums.archive --to sums.parquet[/]
    """
    from headrace.app.views.offline_page import export_page
    from headrace.ops.offline.exporter import export

    log_quietly()
    answer(export(source, policy, to), export_page, as_json=as_json)
