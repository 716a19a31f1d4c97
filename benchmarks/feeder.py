"""What a turn of the feeder costs, by the number of open tasks: `python -m benchmarks.feeder [--open N,N]`.

There is no broker. Each turn has the most work that a turn can have: 256 groups are acknowledged, 256 others are
trained, 256 tasks are issued, and the snapshot is made and encoded. Groups are acknowledged and trained in the order of
their tasks, or anywhere among the open tasks, which is the worst case. Times are CPU time of this process, because
other work on the machine disturbs it least; they are medians over turns.

In the table, `open` is the number of open tasks. `snapshot ms` is part of `turn ms`; `kB` and `records` are what one
snapshot writes, and `largest kB` is the largest of all records. `look ms` is the search for tasks that the workers have
passed, once in ten seconds. `restart s` is the time to restore the state, and `state MB` is what is read for it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import structlog
from rich.console import Console
from rich.table import Table

from headrace.envs.contract import Problem, Score, Split
from headrace.infra.kafka.clients import Connection, Outgoing, RunAddress
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.own_positions import OwnPositions, Role
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreAddress
from headrace.producers.feed.feed_state import FeedState
from headrace.producers.feed.feeder import Feeder
from headrace.producers.feed.selectors.contract import AcceptAll
from headrace.producers.feed.task_source import TaskSource
from headrace.schemas import codec
from headrace.schemas.records import BatchTrained, GroupUse, Outcome, RecipeRevision, Snapshot
from headrace.schemas.topics import FEEDER

HEARD = 256
STREAM, POLICY, PARTITIONS = "sums", "solver", 100


@dataclass(frozen=True, slots=True)
class Turns:
    """What turns cost with so many numbers open."""

    open: int
    order: str
    """in order | anywhere"""
    turn_ms: float
    """Taking records, planning, and the snapshot."""
    snapshot_ms: float
    """Of that the snapshot alone."""
    written_bytes: int
    """Of a snapshot's records."""
    records: int
    largest_bytes: int
    """Record of all that were ever written."""
    look_ms: float
    """Finding what the workers have passed, once in ten seconds."""
    restore_s: float
    state_bytes: int
    """Of the records that a restart reads."""


class Numbers:
    """An environment that costs nothing."""

    name = "numbers"

    def size(self, split: Split) -> int | None:
        """Return that there is no end."""
        return None if split == "train" else 0

    def problem(self, split: Split, index: int) -> Problem:
        """Return a problem of some text."""
        return Problem(f"{split}-{index}", "What is it?", str(index), "")

    def score(self, problem: Problem, text: str) -> Score:
        """Return no reward."""
        del problem, text
        return Score(0.0)


class Written(OwnPositions):
    """Keeps the newest record of every key instead of a broker."""

    def __init__(self, run: Run) -> None:
        self.role = Role(run.connection, FEEDER, run.run_id, run.state_partition_id(FEEDER), ())
        positions = {(f"{STREAM}.{topic}", partition): 1 for topic in "abc" for partition in range(PARTITIONS)}
        self.reader = cast("Any", SimpleNamespace(positions=positions))
        self.restored, self.parts, self._pieces = None, {}, set()
        self.newest: dict[bytes, bytes] = {}
        self.largest = 0

    def keep(self, records: Sequence[Outgoing]) -> None:
        """Take what a transaction holds."""
        for record in records:
            self.largest = max(self.largest, len(record.value))
            if record.is_null:
                self.newest.pop(record.key, None)
            else:
                self.newest[record.key] = record.value

    def again(self, run: Run) -> Written:
        """Return what a restart finds."""
        other = Written(run)
        for key, value in self.newest.items():
            body = codec.decode(value, Snapshot).body
            name = key.decode().partition("|")[2]
            if name:
                other.parts[name] = body
            else:
                other.restored = body
        return other


def build_run(most_open: int) -> Run:
    """Return a run whose window holds so many groups."""
    recipe = Recipe.model_validate(
        {
            "name": "feeding",
            "policies": {POLICY: {"path": "/none"}},
            "workflows": {STREAM: {"env": {"use": "numbers"}, "policies": {POLICY: POLICY}}},
            "trainer": {"groups_per_batch": most_open, "minibatches": 1, "max_staleness": 0, "steps": 10**6},
            "evaluate": {"every": 0},
            "kafka": {"partitions": PARTITIONS},
        }
    )
    return Run(RunAddress(Connection("nowhere:1"), "feeding"), "run-1", (recipe,), StoreAddress("nowhere:1", "b"))


def made_feeder(run: Run, own: Written) -> Feeder:
    """Return a feeder over what was written."""
    source = TaskSource(STREAM, lambda _: Numbers(), AcceptAll(1))
    return Feeder(run, own, FeedState(run.recipe, RecipeRevision(run_id="run-1"), {STREAM: source}))


def commit(feeder: Feeder, own: Written, offsets: Iterator[int]) -> list[Outgoing]:
    """Do what follows from a tick; return the snapshot's records."""
    tickets = [cast("Any", SimpleNamespace(offset=next(offsets))) for _ in feeder._planned]  # noqa: SLF001
    records = list(feeder.before_commit(tickets))
    own.keep(records)
    return records


def measure_turns(most_open: int, order: str, turns: int) -> Turns:
    """Fill the window, and measure turns."""
    run = build_run(most_open)
    own, draw = Written(run), random.Random(1)  # noqa: S311 - no secret
    feeder, offsets = made_feeder(run, own), iter(range(10**9))
    feeder._commits = cast("Any", SimpleNamespace(find_overdue=lambda _: []))  # noqa: SLF001
    while feeder.state.pacing.count_open(POLICY) < most_open:
        list(feeder.tick())
        commit(feeder, own, offsets)
    waiting = [group.number for group in feeder.state.pacing.tasks]
    if order == "anywhere":
        draw.shuffle(waiting)
    spent, snapshots, written = list[float](), list[float](), list[list[Outgoing]]()
    for turn in range(turns):
        trained, kept = waiting[:HEARD], waiting[HEARD : 2 * HEARD]
        waiting = waiting[HEARD:]
        outcomes = [
            Outcome("run-1", stream=STREAM, number=number, policy=POLICY, verdict="kept", component="curate")
            for number in kept
        ]
        batch = BatchTrained(
            "run-1", POLICY, version=turn, groups=tuple(GroupUse(STREAM, number) for number in trained)
        )
        begin = time.process_time()
        for outcome in outcomes:
            feeder.state.fold_outcome(outcome)
        feeder.state.fold_batch(batch)
        list(feeder.tick())
        middle = time.process_time()
        waiting += [planned.task.number for planned in feeder._planned]  # noqa: SLF001
        written.append(commit(feeder, own, offsets))
        end = time.process_time()
        spent.append(end - begin)
        snapshots.append(end - middle)
    begin = time.process_time()
    list(feeder.state.pacing.find_passed({}))
    look = time.process_time() - begin
    found = own.again(run)
    begin = time.process_time()
    again = made_feeder(run, found)
    restore_s = time.process_time() - begin
    if again.state.pacing.tasks != feeder.state.pacing.tasks:
        raise AssertionError("numbers were lost on the way")
    return Turns(
        open=most_open,
        order=order,
        turn_ms=statistics.median(spent) * 1e3,
        snapshot_ms=statistics.median(snapshots) * 1e3,
        written_bytes=round(statistics.median(sum(len(one.value) for one in records) for records in written)),
        records=round(statistics.median(len(records) for records in written)),
        largest_bytes=own.largest,
        look_ms=look * 1e3,
        restore_s=restore_s,
        state_bytes=sum(map(len, own.newest.values())),
    )


def table_of(found: Sequence[Turns]) -> Table:
    """Return the figures for people."""
    names = ("open", "", "turn ms", "snapshot ms", "kB", "records", "largest kB", "look ms", "restart s", "state MB")
    table = Table(*names, box=None)
    for one in found:
        table.add_row(
            f"{one.open:,}", one.order, f"{one.turn_ms:.1f}", f"{one.snapshot_ms:.1f}",
            f"{one.written_bytes / 1e3:.0f}", str(one.records), f"{one.largest_bytes / 1e3:.1f}", f"{one.look_ms:.1f}",
            f"{one.restore_s:.2f}", f"{one.state_bytes / 1e6:.1f}",
        )  # fmt: skip
    return table


def main(words: Sequence[str]) -> int:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.feeder", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--open", default="10000,100000", help="numbers of open tasks; 10000,100000 by default")
    parser.add_argument("--turns", type=int, default=50, help="number of turns to measure")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    asked = parser.parse_args(words)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    sizes = [int(size) for size in asked.open.split(",")]
    found = [measure_turns(size, order, asked.turns) for size in sizes for order in ("in order", "anywhere")]
    Console().print(table_of(found))
    if asked.json:
        asked.json.write_text(json.dumps([asdict(one) for one in found], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
