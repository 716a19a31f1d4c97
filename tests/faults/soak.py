"""A run that goes on for a while: memory of every process and lag of every group, recorded, and flat after warm-up.

`make soak`, or `SOAK_MINUTES=5 make soak`, or `python tests/faults/soak.py --help`. A line of JSON per sample goes to a
file; the table at the end fits a line to each process's memory after the warm-up.
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

import numpy as np
import psutil
import structlog
from launched import Launched, until
from progress import Progress
from rich.console import Console
from rich.table import Table

EVERY_S = 2.0
WARM_UP = 0.3
"""Share of the time that is left out: imports, first batches, allocators."""
GROWTH_MIB, GROWTH = 8.0, 0.05
"""A process may end so much higher than it began after the warm-up, in MiB or as a share: noise of allocators."""
MOST_LAG = 200
"""Records; the feeder's pace allows a dozen groups."""
STEPS = 1_000_000
STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look."""

    at_s: float
    version: int
    memory_mib: dict[str, float]
    """Resident memory by process, without its children; the broker is a JVM with a bounded heap."""
    lag: int
    """Trajectory groups that wait for a curator."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A line through the samples after the warm-up."""

    process: str
    begin_mib: float
    end_mib: float
    peak_mib: float

    @property
    def flat(self) -> bool:
        """Whether it grew no more than noise does."""
        return self.end_mib - self.begin_mib <= max(GROWTH_MIB, GROWTH * self.begin_mib)


def trends(samples: Sequence[Sample]) -> list[Trend]:
    """Fit a line to every process's memory after the warm-up."""
    kept = [sample for sample in samples if sample.at_s >= samples[-1].at_s * WARM_UP]
    found = []
    for process in sorted(kept[-1].memory_mib):
        points = [(sample.at_s, sample.memory_mib[process]) for sample in kept if process in sample.memory_mib]
        times, sizes = np.array(points).T
        slope, level = np.polyfit(times, sizes, 1)
        ends = level + slope * times[[0, -1]]
        found.append(Trend(process, float(ends[0]), float(ends[1]), float(sizes.max())))
    return found


def soak(launched: Launched, seconds: float, record: Path) -> list[Sample]:
    """Let a run go on, writing a sample every two seconds."""
    launched.start()
    run = launched.joined()
    samples: list[Sample] = []
    with Progress(run) as progress, record.open("w") as file:
        until(lambda: progress.version >= 1 or launched.ended() is not None, "the first version", STOP_S * 5)
        began = time.monotonic()
        while time.monotonic() - began < seconds and launched.ended() is None:
            sample = Sample(
                round(time.monotonic() - began, 1), progress.version, _memory(launched), progress.curators_lag()
            )
            samples.append(sample)
            file.write(json.dumps({name: getattr(sample, name) for name in Sample.__slots__}) + "\n")
            file.flush()
            time.sleep(EVERY_S)
    launched.interrupt()
    launched.await_end(STOP_S)
    return samples


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
    table = Table("process", "after warm-up", "at the end", "peak", "verdict", box=None)
    found = trends(samples)
    for one in found:
        sizes = (f"{size:.1f} MiB" for size in (one.begin_mib, one.end_mib, one.peak_mib))
        table.add_row(one.process, *sizes, "flat" if one.flat else "[red]GROWS[/]")
    console.print(table)
    most_lag = max(sample.lag for sample in samples)
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
