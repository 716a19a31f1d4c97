"""Commands that copy a run's topics out of Kafka, back into Kafka, and into a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.app.cli.options import DataChoice, JsonOption, RunChoice, log_quietly, print_answer

TopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topics",
        metavar="TOPIC",
        help="Topic to copy, without the run's name: trajectories.solver. Repeatable. Default: all topics that are "
        "not compacted.",
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
            help="Also copy weights, checkpoints and the topic `state`. Default for a new archive of all topics: copy "
            "them if they are smaller than 1 GiB, else ask.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy topics of a run into Avro files. Given again, the command adds only new records.

    Any Avro tool reads the files. Objects that trajectories need are copied too, and so are weights and checkpoints,
    so that you can train on the archive. The run may be running or stopped. If the command is killed, give it again:
    no record is missing or doubled. It then also copies objects that the store lacked before. Give --with-weights to
    add what an earlier --without-weights left out.

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
        print_answer(done, archive_page, as_json=as_json)


def _ask_for_weights(size_bytes: int) -> bool:
    return typer.confirm(f"Weights and checkpoints of this run are {size_bytes / 1e9:.1f} GB. Copy them too?", err=True)


def replay(
    source: Annotated[
        str, typer.Argument(metavar="ARCHIVE", help="Folder or s3://BUCKET/PREFIX that `headrace archive` made.")
    ],
    into: Annotated[
        str | None,
        typer.Option("--into", metavar="ADDRESS", help="kafka://HOST:PORT/RUN, where RUN is the archived run's name."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="A new folder, for an embedded Kafka and store that hold the run."),
    ] = None,
    topics: TopicsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write an archive into a Kafka that does not hold the run: same topics, keys, headers, times and order.

    Offsets are new. If the command is killed, give it again: it continues where it stopped. It refuses topics that hold
    other records.

    Example: [bold]headrace replay sums.archive --data .headrace/again[/]
    """
    from headrace.app.views.offline_page import replay_page
    from headrace.ops.offline.replayer import replay as replay_archive

    log_quietly()
    print_answer(replay_archive(source, into, data, topics or ()), replay_page, as_json=as_json)


def export_trajectories(
    source: Annotated[
        str, typer.Argument(metavar="ARCHIVE", help="Folder or s3://BUCKET/PREFIX that `headrace archive` made.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="New file: .parquet, or .jsonl for ATIF.")],
    policy: Annotated[str | None, typer.Option("--policy", help="Policy; default: the only one.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write an archive's trajectories into a file, with the outcome of each.

    FILE.parquet needs the extra parquet. A row is one sequence: ids, tokens, log-probabilities, versions, rewards,
    outcome and reason. FILE.jsonl has one document of ATIF-v1.8, Harbor's trajectory format, for each trajectory. Both
    have texts too if the archive holds weights, because the tokenizer is stored with them.

    Example: [bold]headrace export sums.archive --to sums.parquet[/]
    """
    from headrace.app.views.offline_page import export_page
    from headrace.ops.offline.atif_export import export_atif
    from headrace.ops.offline.exporter import export

    log_quietly()
    write = export_atif if to.suffix == ".jsonl" else export
    print_answer(write(source, policy, to), export_page, as_json=as_json)
