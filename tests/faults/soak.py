"""A run that goes on for a while: memory of every process and lag of every topic, recorded, and flat after warm-up.

`make soak`, or `SOAK_MINUTES=5 make soak`, or `python tests/faults/soak.py --help`. A line of JSON per sample goes to a
file; the table at the end fits a line to each process's memory, and to each topic's lag, after the warm-up.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import psutil
import structlog
from launched import Launched, until
from progress import POLICY, Progress
from rich.console import Console
from rich.table import Table

from headrace.infra.kafka.topic_reader import PartitionId, TopicReader, find_start_positions
from headrace.infra.run.run import Run
from headrace.ops.figures.figures import measure_lags
from headrace.schemas import codec
from headrace.schemas.records import BatchTrained

EVERY_S = 2.0
WARM_UP = 0.3
"""Share of the time that is left out: imports, first batches, allocators."""
GROWTH_MIB, GROWTH = 8.0, 0.05
"""A process may end so much higher than it began after the warm-up, in MiB or as a share: noise of allocators."""
MOST_LAG = 200
"""Unread records of a topic, at any time; the feeder's pace allows a dozen groups."""
LAG_GROWTH = 20.0
STEPS = 1_000_000
STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look."""

    at_s: float
    version: int
    memory_mib: dict[str, float]
    """Resident memory by process, without its children; the broker is a JVM with a bounded heap."""
    lag: dict[str, int]
    """Unread records by topic."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A line through the samples after the warm-up."""

    name: str
    unit: str
    begin: float
    end: float
    peak: float
    growth: float
    """As much as noise makes."""

    @property
    def flat(self) -> bool:
        """Whether it grew no more than noise does."""
        return self.end - self.begin <= self.growth


def trends(samples: Sequence[Sample]) -> list[Trend]:
    """Fit a line to every process's memory and every topic's lag after the warm-up."""
    kept = [sample for sample in samples if sample.at_s >= samples[-1].at_s * WARM_UP]
    found = []
    for name in sorted(kept[-1].memory_mib):
        begin, end, peak = _line([(one.at_s, one.memory_mib[name]) for one in kept if name in one.memory_mib])
        found.append(Trend(name, "MiB", begin, end, peak, max(GROWTH_MIB, GROWTH * begin)))
    for name in sorted(kept[-1].lag):
        begin, end, peak = _line([(one.at_s, one.lag[name]) for one in kept if name in one.lag])
        found.append(Trend(name, "records", begin, end, peak, LAG_GROWTH))
    return found


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the ends of the line that fits best, and the highest point."""
    times, sizes = np.array(points, float).T
    slope, level = np.polyfit(times, sizes, 1)
    begin, end = level + slope * times[[0, -1]]
    return float(begin), float(end), float(sizes.max())


def soak(launched: Launched, seconds: float, record: Path) -> list[Sample]:
    """Let a run go on, writing a sample every two seconds."""
    launched.start()
    run = launched.joined()
    samples: list[Sample] = []
    with Progress(run) as progress, Lags(run) as lags_of, record.open("w") as file:
        until(lambda: progress.version >= 1 or launched.ended() is not None, "the first version", STOP_S * 5)
        began = time.monotonic()
        while time.monotonic() - began < seconds and launched.ended() is None:
            at_s = round(time.monotonic() - began, 1)
            sample = Sample(at_s, progress.version, _memory(launched), lags_of.now())
            samples.append(sample)
            file.write(json.dumps({name: getattr(sample, name) for name in Sample.__slots__}) + "\n")
            file.flush()
            time.sleep(EVERY_S)
    launched.interrupt()
    launched.await_end(STOP_S)
    return samples


class Lags:
    """Asks how far the readers of a run are behind; what the trainer has read stands in its batch records."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._read: dict[PartitionId, int] = {}
        self._reader = TopicReader(
            run.connection, find_start_positions(run.connection, [run.topics.batches(POLICY)]), "lags"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def now(self) -> dict[str, int]:
        """Return topic to unread records."""
        for message in self._reader.poll(1000, 0):
            batch = codec.decode(message.value, BatchTrained)
            self._read = {(self._run.topics.curated(POLICY), one.partition): one.offset for one in batch.positions}
        return measure_lags(self._run, self._read)


def _memory(launched: Launched) -> dict[str, float]:
    found = {}
    for name, pid in launched.everybody().items():
        with suppress(psutil.NoSuchProcess):
            found[name] = round(psutil.Process(pid).memory_info().rss / (1 << 20), 1)
    return found


def main() -> int:
    """Soak once; return 1 when something grows, or the audit does not close."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=20.0)
    options.add_argument("--turn-s", type=float, default=0.1, help="how long a turn of the environment takes")
    options.add_argument("--folder", type=Path, help="where run and record lie; a temporary one if not given")
    given = options.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    console = Console(width=200)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / "soak.jsonl"
    launched = Launched(folder / "run", [f"trainer.steps={STEPS}", f"workflows.flips.env.turn_s={given.turn_s}"])
    try:
        samples = soak(launched, given.minutes * 60, record)
    finally:
        launched.leave_nothing()
    audit = launched.asked("audit")
    table = Table("process or topic", "after warm-up", "at the end", "peak", "verdict", box=None)
    found = trends(samples)
    for one in found:
        sizes = (f"{size:.1f} {one.unit}" for size in (one.begin, one.end, one.peak))
        table.add_row(one.name, *sizes, "flat" if one.flat else "[red]GROWS[/]")
    console.print(table)
    most_lag = max(max(sample.lag.values()) for sample in samples)
    ok = bool(audit.said.get("ok")) and most_lag <= MOST_LAG and all(one.flat for one in found)
    console.print(
        f"{samples[-1].version} versions in {samples[-1].at_s / 60:.1f} minutes, most lag {most_lag}, audit "
        f"{'closes' if audit.said.get('ok') else audit.said or audit.errors}; {record}",
        highlight=False,
        soft_wrap=True,
    )
    return int(not ok)


if __name__ == "__main__":
    sys.exit(main())
