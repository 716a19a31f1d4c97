"""A region 300 ms away: bytes over the link, lag of its weights, its share of the training, and cuts of three lengths.

One run with a worker at home and one in the region, whose Kafka and store are in a network namespace of their own. The
engine without a model plays, so that two cores carry it: each worker could play four groups a second, a version takes
16 groups and keeps the trainer busy for 5 s. Weights and their deltas are real. It takes its cuts and about five
minutes, and writes its figures as JSON with --json.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.autoscale import CALLS, SLOW_LOSS
from benchmarks.far_machine import FarMachine
from benchmarks.shaped_link import Shape, ShapedLink
from headrace.consumers.relay.relay import read_home_offset
from headrace.infra.kafka.clients import Connection
from headrace.infra.kafka.topic_reader import read_all

RUN, REGION, WEIGHTS = "wan", "west", "wan.weights.solver"
STEP_S, BATCH, GROUP = 5.0, 16, 8
RECIPE = f"""
extends = "efficient-data/scripted"
name = "{RUN}"
policies.solver.model = {{ hidden_size = 64, intermediate_size = 128, num_hidden_layers = 2, num_attention_heads = 4 }}
workflows.sums.env = {{ use = "scripted", levels = [0], tasks = 256 }}
rollout.engine = {{ use = "scripted", rate = 0, difficulties = [0], tokens = [20], seconds_per_token = 0.0125 }}
rollout.concurrency = {GROUP}
trainer = {{ steps = 100000, groups_per_batch = {BATCH}, max_staleness = 2, loss = "slow_loss:slow" }}
feed.solved_share = 1
evaluate.every = 0
kafka.partitions = 4
regions.{REGION} = {{}}
"""
TRAINED = (
    "trained t JOIN outcome c ON c.variant = t.variant AND c.stream = t.stream AND c.number = t.number "
    "AND c.use = t.use AND c.decides AND c.verdict = 'kept'"
)
CUTS_S = (10.0, 120.0, 600.0)
PATIENCE_S = 300.0
LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Steady:
    """A stretch without a cut."""

    seconds: float
    versions: int
    kafka_bytes: int
    """Over the link, both ways."""
    store_bytes: int
    whole_bytes: int
    """Of one version's whole weights."""
    lag_p50_s: float
    """From the event at home to the event in the region."""
    lag_p99_s: float
    trained: dict[str, int]
    """Stream to its groups that were trained."""
    staleness: dict[str, float]
    """Stream to the mean age in versions of a group's oldest token when it was trained."""
    wait_share: float
    """Of the trainer's time."""


@dataclass(frozen=True, slots=True)
class Healed:
    """What a cut cost."""

    cut_s: float
    versions_meanwhile: int
    relayed_after_s: float
    """From the end of the cut until the region has a version that was made after it."""
    trained_after_s: float
    """The same until a group that the region began after it is trained."""


class WatchedRun:
    """A run of `headrace up`, watched from outside while it goes on."""

    def __init__(self, data: Path, far: FarMachine) -> None:
        self._data, self._far = data, far
        recipe = data.parent / "wan.toml"
        recipe.write_text(RECIPE)
        (data.parent / "slow_loss.py").write_text(SLOW_LOSS.format(seconds=STEP_S / BATCH / GROUP / CALLS))
        words = ["up", str(recipe), "--plain", "--data", str(data)]
        words += [word for one in far.list_settings(REGION) for word in ("--set", one)]
        with (data.parent / "up.txt").open("wb") as output:
            self.up = subprocess.Popen(
                [sys.executable, "-m", "headrace", *words], stdout=output, stderr=output, env={**os.environ, **far.keys}
            )

    def wait(self, condition: Callable[[], bool], what: str) -> float:
        """Wait for a condition; return the seconds that it took."""
        began = time.monotonic()
        while not condition():
            if self.up.poll() is not None or time.monotonic() > began + PATIENCE_S:
                raise SystemExit(f"not within {PATIENCE_S} s: {what}; see {self._data}")
            time.sleep(LOOK_EVERY_S)
        return time.monotonic() - began

    def find_version(self) -> int:
        """Return the newest version of the trainer's log; -1 for none."""
        log = self._data / "logs" / "train-solver.log"
        found = re.findall(r'"version": (\d+), ', log.read_text()) if log.exists() else []
        return int(found[-1]) if found else -1

    def find_relayed(self) -> int:
        """Return the newest version that the relay has brought into the region; -1 for none."""
        log = self._data / "logs" / f"relay-{REGION}.log"
        found = re.findall(r'"version": (\d+), "copied_bytes"', log.read_text()) if log.exists() else []
        return int(found[-1]) if found else -1

    def query(self, sql: str, *values: object) -> list[Any]:
        """Return rows of the ledger, brought up to date."""
        status = [sys.executable, "-m", "headrace", "status", "--data", str(self._data), "--json"]
        subprocess.run(status, check=True, capture_output=True)
        with closing(sqlite3.connect(f"file:{self._data / 'ledger.sqlite'}?mode=ro", uri=True)) as ledger:
            return ledger.execute(sql, values).fetchall()

    def count_from_region(self, since_version: int = -1) -> int:
        """Return how many groups of the region were trained whose tokens are all of a version or newer."""
        [(count,)] = self.query(
            f"SELECT count(*) FROM {TRAINED} WHERE t.stream = ? AND c.min_version >= ?",  # noqa: S608 - of constants
            f"sums.{REGION}",
            since_version,
        )
        return int(count)

    def measure_lags(self, first: int, last: int) -> list[float]:
        """Return the seconds from home to the region of each version between two."""
        notes = json.loads((self._data / "run.json").read_text())
        home = {m.offset: m.timestamp_ms for m in read_all(Connection(notes["bootstrap"]), [WEIGHTS])}
        there = read_all(Connection(self._far.bootstrap), [WEIGHTS])
        return [
            (message.timestamp_ms - home[read_home_offset(message)]) / 1000
            for message in there
            if read_home_offset(message) in home and first < int(message.key) <= last
        ]


def measure_steady(run: WatchedRun, link: ShapedLink, far: FarMachine, seconds: float) -> Steady:
    """Watch a stretch without a cut."""
    first, before = run.find_version(), link.carried.copy()
    time.sleep(seconds)
    last, carried = run.find_version(), link.carried - before
    by_port = {
        port: sum(n for (at, _), n in carried.items() if at == port) for port in (far.kafka_port, far.store_port)
    }
    rows = run.query(
        f"SELECT t.stream, count(*), avg(t.version - 1 - c.min_version) FROM {TRAINED} "  # noqa: S608 - of constants
        "WHERE t.version > ? AND t.version <= ? GROUP BY 1",
        first,
        last,
    )
    batches = run.query("SELECT metrics FROM batch WHERE version > ? AND version <= ?", first, last)
    waited_s = sum(json.loads(text)["wait_s"] for (text,) in batches)
    [(whole,)] = run.query("SELECT max(full_bytes) FROM weights")
    lags = sorted(run.measure_lags(first, last))
    return Steady(
        seconds,
        last - first,
        by_port[far.kafka_port],
        by_port[far.store_port],
        int(whole),
        statistics.median(lags),
        lags[int(len(lags) * 0.99)],
        {stream: count for stream, count, _ in rows},
        {stream: round(age, 2) for stream, _, age in rows},
        waited_s / seconds,
    )


def measure_cut(run: WatchedRun, link: ShapedLink, cut_s: float) -> Healed:
    """Cut the link for so long."""
    at_cut = run.find_version()
    with link.cut_off():
        time.sleep(cut_s)
    healed = run.find_version()
    relayed = run.wait(lambda: run.find_relayed() > healed, "new weights in the region")
    trained = relayed + run.wait(lambda: run.count_from_region(healed) > 0, "new groups from the region")
    return Healed(cut_s, healed - at_cut, round(relayed, 1), round(trained, 1))


def measure(shape: Shape, cuts_s: Sequence[float], steady_s: float, folder: Path) -> tuple[Steady, list[Healed], bool]:
    """Make one run; return its figures, and whether its audit closes."""
    with ShapedLink(shape) as link, FarMachine(folder / "far", link) as far:
        run = WatchedRun(folder / "data", far)
        try:
            run.wait(lambda: run.find_version() >= 1, "the first versions")
            far.start_worker(RUN, REGION, "sums", "west-0")
            run.wait(lambda: run.count_from_region() > 0, "groups from the region")
            time.sleep(5)
            steady = measure_steady(run, link, far, steady_s)
            healed = [measure_cut(run, link, cut_s) for cut_s in cuts_s]
        finally:
            run.up.send_signal(signal.SIGINT)
            run.up.wait(120)
        audit = [sys.executable, "-m", "headrace", "audit", "--data", str(folder / "data"), "--json"]
        done = subprocess.run(audit, check=False, capture_output=True, text=True)
        return steady, healed, bool(done.returncode == 0 and json.loads(done.stdout)["ok"])


def show(console: Console, steady: Steady, healed: Sequence[Healed], *, closes: bool) -> None:
    """Print the figures."""
    per_version = Table(title=f"{steady.versions} versions in {steady.seconds:.0f} s")
    for name in ("", "per version", "beside it"):
        per_version.add_column(name)
    rows = (
        ("weights over the link", f"{steady.store_bytes / steady.versions / 1e3:.1f} kB",
         f"{steady.whole_bytes / 1e3:.1f} kB for each worker that pulls whole weights"),
        ("records over the link", f"{steady.kafka_bytes / steady.versions / 1e3:.1f} kB", ""),
        ("weights in the region after", f"p50 {steady.lag_p50_s:.2f} s, p99 {steady.lag_p99_s:.2f} s", ""),
        ("groups trained", str(steady.trained), f"mean age in versions {steady.staleness}"),
        ("trainer waits", f"{steady.wait_share:.1%} of its time", ""),
    )  # fmt: skip
    for row in rows:
        per_version.add_row(*row)
    console.print(per_version)
    cuts = Table(title=f"cuts; the audit {'closes' if closes else 'DOES NOT CLOSE'}")
    for name in ("cut", "versions at home meanwhile", "weights again after", "its new groups trained after"):
        cuts.add_column(name, justify="right")
    for one in healed:
        after = (f"{one.relayed_after_s:.1f} s", f"{one.trained_after_s:.1f} s")
        cuts.add_row(f"{one.cut_s:.0f} s", str(one.versions_meanwhile), *after)
    console.print(cuts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--round-trip", type=float, default=0.3, help="seconds for a byte and its answer")
    parser.add_argument("--mbit", type=float, default=100.0, help="bandwidth of the link in Mbit/s")
    parser.add_argument("--loss", type=float, default=0.001, help="share of chunks that are lost and sent again")
    parser.add_argument("--cuts", type=float, nargs="*", default=CUTS_S, help="lengths of the cuts in seconds")
    parser.add_argument("--steady", type=float, default=120.0, help="seconds without a cut")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    shape = Shape(options.round_trip, options.mbit * 1e6 / 8, options.loss)
    folder = Path(tempfile.mkdtemp(prefix="headrace-wan-"))
    steady, healed, closes = measure(shape, options.cuts, options.steady, folder)
    show(Console(width=160), steady, healed, closes=closes)
    if options.json:
        found = {"steady": asdict(steady), "cuts": [asdict(one) for one in healed], "audit_closes": closes}
        options.json.write_text(json.dumps(found, indent=1))
    if closes:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
