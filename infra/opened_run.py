"""A run to look at: one that goes on, by its address or folder, or one that rests, whose broker is started for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.data_folder import DataFolder, only_folder
from infra.embedded_kafka import EmbeddedKafka
from infra.errors import UsageError
from infra.kafka import parse_run
from infra.run import Run, join
from infra.servers import await_leaders

PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run and how it was found."""

    run: Run
    rests: bool
    """True when nobody runs it now: its broker was started for this look."""


@contextmanager
def opened_run(address: str | None, data: Path | None) -> Iterator[OpenedRun]:
    """Join the run of that address or data folder, or the only one below the working directory.

    What is started is stopped again, and only that. Raises UsageError, and what `join` raises.
    """
    if address and data:
        raise UsageError("give --run or --data, not both: the first names a running cluster, the second a folder")
    if address:
        yield OpenedRun(join(parse_run(address), PATIENCE_S), rests=False)
        return
    folder = DataFolder(data) if data else only_folder()
    notes = folder.require()
    if folder.owner() is not None or not notes.embedded_kafka:
        yield OpenedRun(join(parse_run(notes.address), PATIENCE_S), rests=folder.owner() is None)
        return
    with folder.owned(), EmbeddedKafka(folder.kafka) as kafka:
        resting = parse_run(f"kafka://{kafka.bootstrap}/{notes.run}")
        await_leaders(resting.connection)
        yield OpenedRun(join(resting, PATIENCE_S), rests=True)
