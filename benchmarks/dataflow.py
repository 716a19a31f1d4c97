"""The log's speed without a model: `OMP_NUM_THREADS=1 python -m benchmarks.dataflow [--groups N] [--json FILE]`.

Groups of 8 x 2,048 tokens go through a rollout worker's producer, a curator and a trainer's window. These three work at
the same time, each in its own process. They are compared with a chain of bare confluent-kafka over the same bytes,
called `raw` (`benchmarks/chains.py` says what it does). Both chains use one broker, and new topics in every run. They
take turns, and the best round of each counts.

The wall time is from the first produced group to the last group at the end of the chain. The CPU time is that of the
three processes and of the broker in the same time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import queue
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
from confluent_kafka import libversion
from rich.console import Console
from rich.table import Table

from benchmarks import chains
from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.environment import LOG_LEVEL_VARIABLE
from headrace.infra.kafka.clients import Connection, RunAddress, get_admin, translate_kafka_errors
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.log import configure_logging
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.revisions import build_revision, write_revision
from headrace.schemas import codec
from headrace.schemas.records import TrajectoryGroup

TARGET = 0.7
ROUNDS = 3
COMPRESSIONS = ("lz4", "none")
SIDES = {"raw": chains.RAW, "headrace": chains.HEADRACE}
BATCH = 32
"""Groups that the trainer cuts from its window at a time."""
PARTITIONS = 8
PATIENCE_S = 180


@dataclass(frozen=True, slots=True)
class Passage:
    """One run of one chain."""

    groups_per_s: float
    cpu_ms: dict[str, float]
    """Milliseconds of CPU per group, by process."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Best passages of the two chains."""

    compression: str
    raw: Passage
    headrace: Passage

    @property
    def ratio(self) -> float:
        """Headrace's speed in raw speeds."""
        return self.headrace.groups_per_s / self.raw.groups_per_s


# ----------------------------------------------------------------------------------------------------------- one chain


def recipe_of(name: str, compression: str, groups: int) -> Recipe:
    """Return a run whose trainer's window holds all groups of the benchmark: nothing paces the producer here."""
    whole = {
        "name": name,
        "policies": {chains.POLICY: {"path": "none"}},
        "workflows": {chains.STREAM: {"env": {"use": "arithmetic"}, "policies": {"solver": chains.POLICY}}},
        "trainer": {"groups_per_batch": BATCH, "max_staleness": groups // BATCH},
        "kafka": {"partitions": PARTITIONS, "compression": compression},
    }
    return Recipe.model_validate(whole)


@contextmanager
def create_run(bootstrap: str, recipe: Recipe) -> Iterator[RunAddress]:
    """Fresh topics and a recipe on them; the topics go at the end."""
    address = RunAddress(Connection(bootstrap), recipe.name)
    specs = recipe.topics.all(tuple(recipe.workflows), tuple(recipe.policies), recipe.kafka.partitions)
    ensure_topics(address.connection, specs)
    no_store = json.dumps({"url": "http://127.0.0.1:1/none/", "access_key": "none", "secret_key": "none"})
    write_revision(address.connection, recipe.topics.recipe, build_revision("run-1", 0, recipe, no_store))
    try:
        yield address
    finally:
        admin = get_admin(address.connection)
        for name, future in admin.delete_topics([spec.name for spec in specs]).items():
            with translate_kafka_errors(f"deleting topic {name}"):
                future.result()


def pass_through(side: str, compression: str, groups: int, broker: EmbeddedKafka) -> Passage:
    """Start a chain's three processes, warm them up, send the groups, wait for the last."""
    name = f"{side}-{time.time_ns()}"
    with create_run(broker.bootstrap, recipe_of(name, compression, groups + BATCH)) as address:
        context = multiprocessing.get_context("spawn")
        reports, go = context.Queue(), context.Event()
        load = chains.Load(str(address), BATCH, groups)
        stages = {stage.__name__: context.Process(target=stage, args=(load, reports, go)) for stage in SIDES[side]}
        for process in stages.values():
            process.start()
        try:
            watched = {"broker": broker.pid, **{name: process.pid for name, process in stages.items()}}
            told = partial(_report, reports, stages)
            told("warm")
            before = _cpu_s(watched)
            go.set()
            first, last = told("first"), told("last")
            after = _cpu_s(watched)
        finally:
            for process in stages.values():
                process.terminate()
                process.join(20)
    cpu = {process: 1000 * (after[process] - before[process]) / groups for process in watched}
    return Passage(groups / (last - first), cpu)


def _report(reports: chains.Reports, stages: Mapping[str, BaseProcess], word: str) -> float:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            found, at = reports.get(timeout=0.5)
        except queue.Empty:
            dead = {name: process.exitcode for name, process in stages.items() if process.exitcode}
            if dead:
                ended = ", ".join(f"{name} (exit code {code})" for name, code in dead.items())
                raise SystemExit(f"error: processes of the chain ended before it was complete: {ended}") from None
        else:
            assert found == word, f"heard {found!r} while waiting for {word!r}"  # noqa: S101 - the stages' own order
            return at
    raise SystemExit(f"error: no process of the chain reported {word!r} within {PATIENCE_S} s")


def _cpu_s(pids: dict[str, int | None]) -> dict[str, float]:
    found = {}
    for name, pid in pids.items():
        times = psutil.Process(pid).cpu_times()
        found[name] = times.user + times.system
    return found


# ------------------------------------------------------------------------------------------------------- all the rounds


def compare(compression: str, groups: int, rounds: int, broker: EmbeddedKafka) -> Comparison:
    """Let the chains take turns, so that both meet the same load on the machine; the fastest passage counts."""
    passages: dict[str, list[Passage]] = defaultdict(list)
    for _ in range(rounds):
        for side in SIDES:
            passages[side].append(pass_through(side, compression, groups, broker))
    best = {side: max(found, key=lambda passage: passage.groups_per_s) for side, found in passages.items()}
    return Comparison(compression, best["raw"], best["headrace"])


def codec_speed() -> tuple[int, float, float]:
    """Bytes of an encoded group, encodes per second and decodes per second in one process, best of three."""
    group = chains.made_groups("run-1")[0]
    data = codec.encode(group)
    return (
        len(data),
        _per_second(lambda: codec.encode(group)),
        _per_second(lambda: codec.decode(data, TrajectoryGroup)),
    )


def _per_second(call: Callable[[], object]) -> float:
    best = 0.0
    for _ in range(ROUNDS):
        begin, calls = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - begin) < 1:
            call()
            calls += 1
        best = max(best, calls / elapsed)
    return best


def show(console: Console, comparisons: list[Comparison], size: int, caption: str) -> None:
    title = f"Groups of {chains.SAMPLES} x {chains.TOKENS:,} tokens ({size / 1000:.0f} KB), best of the rounds"
    speeds = Table(title=title, caption=f"{caption}; target ratio {TARGET}")
    speeds.add_column("compression")
    for name in ("raw\ngroups/s", "Headrace\ngroups/s", "ratio", "raw\nMB/s", "Headrace\nMB/s"):
        speeds.add_column(name, justify="right")
    costs = Table(title="CPU milliseconds per group, in the same rounds")
    for name in ("compression", "chain"):
        costs.add_column(name)
    for name in ("broker", "produce", "relay", "read", "all"):
        costs.add_column(name, justify="right")
    for one in comparisons:
        raw, headrace = one.raw.groups_per_s, one.headrace.groups_per_s
        mb = [f"{speed * size / 1e6:,.0f}" for speed in (raw, headrace)]
        speeds.add_row(one.compression, f"{raw:,.0f}", f"{headrace:,.0f}", f"{one.ratio:.2f}", *mb)
        for side, passage in (("raw", one.raw), ("Headrace", one.headrace)):
            spent = [*passage.cpu_ms.values(), sum(passage.cpu_ms.values())]
            costs.add_row(one.compression, side, *(f"{ms:.2f}" for ms in spent))
    console.print(speeds)
    console.print(costs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=2048, help=f"number of groups in each run, a multiple of {BATCH}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of each chain, of which the best counts")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    groups = max(1, arguments.groups // BATCH) * BATCH
    os.environ.setdefault(LOG_LEVEL_VARIABLE, "warning")
    configure_logging("dataflow")
    console = Console()
    size, encodes, decodes = codec_speed()
    with (
        tempfile.TemporaryDirectory(prefix="headrace-dataflow-") as folder,
        EmbeddedKafka(Path(folder), config={"log.segment.delete.delay.ms": "1000"}) as broker,
    ):
        pass_through("raw", "lz4", groups, broker)  # the broker's first is slower
        comparisons = [compare(compression, groups, arguments.rounds, broker) for compression in COMPRESSIONS]
    setting = {
        "groups": groups,
        "rounds": arguments.rounds,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "librdkafka": libversion()[0],
    }
    show(console, comparisons, size, ", ".join(f"{name} {value}" for name, value in setting.items()))
    console.print(f"codec, one process: {encodes:,.0f} encodes/s, {decodes:,.0f} decodes/s of this group")
    if arguments.json:
        figures = {
            **setting,
            "group_bytes": size,
            "comparisons": [{**asdict(one), "ratio": one.ratio} for one in comparisons],
            "encodes_per_s": encodes,
            "decodes_per_s": decodes,
        }
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
