"""Shares of workers of different speed: `python -m benchmarks.shares [--minutes N] [--json FILE]`.

One run of `headrace up` has three rollout workers, each a process of its own and of a kind of its own, with the engine
without a model at 100, 60 and 30 % of one speed. After a warm-up, the groups of each worker are counted. In the table,
`deviation` is its share of the groups / its share of the speed - 1: the goal is at most 10 %.

A slow worker holds no batch back beyond its deadline if versions come all the time (`longest s` is the longest time
between two) and no group is too old when it comes (`expired`, `stale`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.commands import HEADRACE, started
from headrace.infra.embedded.data_folder import DataFolder

SPEEDS = {"full": 1.0, "medium": 0.6, "slow": 0.3}
"""Kind of worker to its speed."""
GOAL = 0.1
TOKENS = 40
TOKEN_S = 0.05
"""Seconds per token at full speed: an answer takes two seconds."""
START_WITHIN_S = 180.0
LOOK_EVERY_S = 0.5

RECIPE = """\
extends = "efficient-data/scripted"
name = "shares"
about = "three workers of different speed"

[workflows.sums]
env = { use = "scripted", levels = [0], tasks = 64 }

[rollout]
engine = { use = "scripted", rate = 0.0, difficulties = [0.0], tokens = [40], seconds_per_token = 0.05 }
group_size = 4
max_tokens = 48
concurrency = 16

[trainer]
steps = 1000000
groups_per_batch = 16
max_staleness = 4
checkpoint_every = 100

[evaluate]
every = 0

[launch]
workers = 0

[kafka]
partitions = 8
"""


class NotStarted(Exception):
    """The run or its workers did not begin to work in time."""


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's part of the groups."""

    kind: str
    speed: float
    groups: int
    share: float
    """Of all groups."""
    deviation: float
    """From its share of the speed."""


def write_recipe(folder: Path) -> Path:
    """Write the recipe with a kind for each speed; return its path."""
    kinds = [
        f'[kinds.{kind}]\nengine = {{ use = "scripted", rate = 0.0, difficulties = [0.0], tokens = [{TOKENS}], '
        f"seconds_per_token = {TOKEN_S / speed} }}\n"
        for kind, speed in SPEEDS.items()
    ]
    path = folder / "shares.toml"
    path.write_text("\n".join([RECIPE, *kinds]))
    return path


def read_status(address: str) -> Mapping[str, Any] | None:
    """Return what `headrace status --json` says; None before there is a run."""
    done = subprocess.run([*HEADRACE, "status", "--json", "--run", address], capture_output=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def count_groups(status: Mapping[str, Any] | None) -> dict[str, int]:
    """Return the groups that each kind of worker has finished."""
    workers = status["workers"] if status else ()
    return {one["kind"]: one["groups_done"] for one in workers if one["kind"] in SPEEDS}


def find_address(data: Path) -> str:
    """Wait until `headrace up` has begun the run; return its address."""
    end = time.monotonic() + START_WITHIN_S
    while time.monotonic() < end:
        if (notes := DataFolder(data).read()) is not None and notes.run_id:
            return notes.address
        time.sleep(LOOK_EVERY_S)
    raise NotStarted(f"`headrace up` began no run within {START_WITHIN_S:g} s: see {data}")


def wait_for_groups(address: str) -> None:
    """Wait until every worker has finished a group."""
    end = time.monotonic() + START_WITHIN_S
    while time.monotonic() < end:
        if len(done := count_groups(read_status(address))) == len(SPEEDS) and all(done.values()):
            return
        time.sleep(LOOK_EVERY_S)
    raise NotStarted(f"not every worker finished a group within {START_WITHIN_S:g} s")


def follow(address: str, seconds: float) -> tuple[float, int]:
    """Look on for so long; return the longest time between two versions, in seconds, and how many came."""
    begin = since = time.monotonic()
    longest, version, first = 0.0, -1, None
    while (now := time.monotonic()) < begin + seconds:
        if (status := read_status(address)) is not None:
            newest = max(status["versions"].values(), default=-1)
            first = newest if first is None else first
            longest = max(longest, now - since)
            if newest > version:
                version, since = newest, now
        time.sleep(max(LOOK_EVERY_S, seconds / 100))  # each look costs a second of CPU
    return longest, version - (first or 0)


def compare(before: Mapping[str, int], after: Mapping[str, int]) -> list[Share]:
    """Return each worker's share of the groups between two counts."""
    groups = {kind: after[kind] - before[kind] for kind in SPEEDS}
    all_groups, all_speed = max(1, sum(groups.values())), sum(SPEEDS.values())
    return [
        Share(kind, speed, groups[kind], share := groups[kind] / all_groups, share * all_speed / speed - 1)
        for kind, speed in SPEEDS.items()
    ]


def measure(folder: Path, minutes: float, warm_up_s: float) -> dict[str, Any]:
    """Run it; return the figures."""
    data, recipe = folder / "run", write_recipe(folder)
    with started(folder / "up.log", "up", str(recipe), "--plain", "--data", str(data)):
        address = find_address(data)
        rollout = ("rollout", "--run", address)
        full, medium, slow = (
            started(folder / f"{kind}.log", *rollout, "--kind", kind, "--name", kind) for kind in SPEEDS
        )
        with full, medium, slow:
            wait_for_groups(address)
            time.sleep(warm_up_s)
            before = count_groups(read_status(address))
            longest_s, versions = follow(address, 60 * minutes)
            status = read_status(address)
            shares = compare(before, count_groups(status))
    discarded = status["groups"]["discarded"] if status else {}
    return {
        "shares": [asdict(one) for one in shares],
        "largest_deviation": max(abs(one.deviation) for one in shares),
        "minutes": minutes,
        "versions": versions,
        "longest_s": round(longest_s, 1),
        "discarded": discarded,
        "cores": os.cpu_count(),
    }


def show(console: Console, figures: Mapping[str, Any]) -> None:
    """Print the table and the lines below it."""
    table = Table(title=f"Three workers, {figures['minutes']:g} minutes")
    for name in ("kind", "speed", "groups", "share", "deviation"):
        table.add_column(name, justify="right")
    for one in figures["shares"]:
        row = (f"{one['speed']:.0%}", f"{one['groups']:,}", f"{one['share']:.1%}", f"{one['deviation']:+.1%}")
        table.add_row(one["kind"], *row)
    console.print(table)
    late = {reason: count for reason, count in figures["discarded"].items() if reason in {"expired", "stale"}}
    console.print(f"{figures['versions']} versions, longest {figures['longest_s']} s; too old: {late or 'none'}")
    verdict = "reached" if figures["largest_deviation"] <= GOAL else "missed"
    console.print(f"largest deviation {figures['largest_deviation']:.1%}, goal {GOAL:.0%}: {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes that count")
    parser.add_argument("--warm-up-s", type=float, default=30.0, help="seconds before the groups count")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-shares-") as folder:
        figures = measure(Path(folder), arguments.minutes, arguments.warm_up_s)
    show(Console(), figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
