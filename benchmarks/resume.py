"""What a trainer's return costs, by the length of its past: `python -m benchmarks.resume [--groups N ...]`.

The benchmark writes the records of a run of N trained groups: batches of 32 groups, an event for each version (some are
anchors), a checkpoint every ten versions, and a window that holds 64 groups. Then a new process reads what a returning
trainer needs, including the window. The figures are its seconds, and by how much its memory grows.

`from its checkpoint on` reads only what follows the newest checkpoint. `all there is` reads everything, as a trainer
does if an older build wrote the checkpoint without an offset. After that, a trainer loads the checkpoint and trains at
most ten batches again; this does not depend on N and is not measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.audit import BATCH, PARTITIONS, RUN_ID, produce, recipe_of
from benchmarks.dataflow import create_run
from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.environment import LOG_LEVEL_VARIABLE
from headrace.infra.kafka.clients import Outgoing, open_producer
from headrace.infra.kafka.run_address import parse_run
from headrace.infra.log import configure_logging
from headrace.infra.run.run import join
from headrace.schemas import codec
from headrace.schemas.records import (
    BatchTrained,
    CheckpointPointer,
    ClaimCheck,
    CuratedGroup,
    GroupUse,
    Position,
    WeightsPublished,
)
from headrace.schemas.topics import Topics, checkpoint_key
from headrace.trainers.versions.batch_offsets import BatchOffsets
from headrace.trainers.versions.history import read_history, read_waiting_groups

WINDOW = 64
ANCHOR_EVERY, CHECKPOINT_EVERY = 50, 10


@dataclass(frozen=True, slots=True)
class Return:
    """What a return read."""

    groups: int
    """Trained in all."""
    how: str
    """`from its checkpoint on`, or `all there is`."""
    seconds: float
    grown_mb: float
    waiting: int
    """Groups of the window."""


def records(topics: Topics, groups: int) -> Iterator[Outgoing]:
    """Everything on curated, batches, weights and state, in the order in which it would be written."""
    curated = codec.encode(CuratedGroup(RUN_ID, "sums"))
    for number in range(groups + WINDOW):
        yield Outgoing(topics.curated("solver"), curated, b"sums", partition=number % PARTITIONS)
    offsets, anchor = BatchOffsets(), 0
    claim = ClaimCheck("main", "weights/" + "0" * 64, "0" * 64, 1)
    for version in range(groups // BATCH + 1):
        is_anchor = version % ANCHOR_EVERY == 0
        anchor = version if is_anchor else anchor
        event = WeightsPublished(
            run_id=RUN_ID,
            policy="solver",
            version=version,
            kind="anchor" if is_anchor else "delta",
            base_version=-1 if is_anchor else version - 1,
            base_hash=f"{version - 1:064x}",
            weights_hash=f"{version:064x}",
            weights=claim,
            anchor_offset=anchor,
        )
        yield Outgoing(topics.weights("solver"), codec.encode(event), b"", partition=0)
        if version == 0:
            continue
        begin = (version - 1) * BATCH
        read = dict.fromkeys(range(PARTITIONS), (begin + BATCH + WINDOW) // PARTITIONS)
        batch = BatchTrained(
            run_id=RUN_ID,
            policy="solver",
            version=version,
            groups=tuple(
                GroupUse("sums", number, 0, number % PARTITIONS, number // PARTITIONS)
                for number in range(begin, begin + BATCH)
            ),
            positions=tuple(Position(partition, offset) for partition, offset in read.items()),
            metrics={f"metric_{i}": 0.5 for i in range(30)},
        )
        offsets.note_concluded(batch)
        yield Outgoing(topics.batches("solver"), codec.encode(batch), b"", partition=0)
        if version % CHECKPOINT_EVERY == 0:
            first = dict.fromkeys(read, (begin + BATCH) // PARTITIONS)
            pointer = CheckpointPointer(
                run_id=RUN_ID,
                policy="solver",
                version=version,
                checkpoint=claim,
                positions=tuple(Position(partition, offset) for partition, offset in first.items()),
                batches_offset=offsets.find_first_needed(first),
            )
            yield Outgoing(topics.state, codec.encode(pointer), checkpoint_key("solver", version), partition=0)
        offsets.note_version_offset(version - 1)


def read_after_restart(address: str, groups: int, how: str) -> Return:
    """Read in this process, which is new, what a trainer reads that comes back."""
    run = join(parse_run(address))
    before, begin = _resident_kib(), time.perf_counter()
    history = read_history(run, "solver", recent=how != "all there is")
    waiting, _ = read_waiting_groups(run, "solver", history)
    seconds = time.perf_counter() - begin
    assert (history.batches[-1].version, len(waiting)) == (groups // BATCH, WINDOW)  # noqa: S101 - it is all there
    return Return(groups, how, round(seconds, 2), round((_resident_kib() - before) / 1024, 1), len(waiting))


def _resident_kib() -> int:
    """Return the most memory that this process ever held; librdkafka's buffers are part of it."""
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmHWM"))
    return int(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--groups", type=int, nargs="*", default=[10_000, 100_000, 1_000_000], help="trained groups of each run"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    os.environ.setdefault(LOG_LEVEL_VARIABLE, "warning")
    configure_logging("resume")
    found: list[Return] = []
    with tempfile.TemporaryDirectory(prefix="headrace-resume-") as folder, EmbeddedKafka(Path(folder)) as broker:
        for groups in arguments.groups:
            found += measure(broker.bootstrap, groups // BATCH * BATCH)
    figures = [asdict(one) for one in found]
    Console().print_json(data=figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(bootstrap: str, groups: int) -> list[Return]:
    with create_run(bootstrap, recipe_of(f"resume-{time.time_ns()}")) as address:
        producer = open_producer(address.connection, "made")
        for one in records(Topics(address.run), groups):
            produce(producer, one)
        producer.flush()
        context = multiprocessing.get_context("spawn")
        found = []
        for how in ("from its checkpoint on", "all there is"):
            with context.Pool(1) as pool:
                found.append(pool.apply(read_after_restart, (str(address), groups, how)))
    return found


if __name__ == "__main__":
    main()
