"""Commands that take a run's topics out of Kafka, and bring them back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra import workers
from infra.cli_options import DataChoice, JsonOption, RunChoice, answer, log_quietly

TopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topics",
        metavar="TOPIC",
        help="Without the run's name: trajectories.solver. Repeatable; all that are not compacted if not given.",
    ),
]


def archive(
    out: Annotated[Path, typer.Option("--out", metavar="ARCHIVE", help="Folder of the archive; one holds one run.")],
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
    """
    from infra.opened_run import opened_run

    log_quietly()
    with opened_run(run, data, store=True) as opened:
        done = workers.find(workers.ARCHIVE)(opened.run, out, topics or (), with_weights=with_weights)
        answer(done, workers.SHOW_ARCHIVED, as_json=as_json)


def replay(
    source: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="Folder that `headrace archive` made.")],
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
