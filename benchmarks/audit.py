"""How fast the audit reads: `OMP_NUM_THREADS=1 python -m benchmarks.audit [--groups N] [--json FILE]`.

The benchmark first writes the records of a complete run of N groups: tasks, trajectories, outcomes, curated groups and
batches, about four records for each group. Then two sides take turns, and the best round of each counts: the audit,
without a store, and a bare loop that consumes the same topics and only counts. After that it measures `--deep`, which
also decodes every group; this rate is in groups. A third side fills a ledger from the topics that `headrace status`
reads, beside a bare loop over the same topics; then come the seconds of a second `status`, which reads nothing new.

Each rate is measured by wall time, and by the CPU time of this process with librdkafka's threads. On an idle machine
the rates by wall time are higher. On a busy machine, compare only the rates by CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer, TopicPartition, libversion
from rich.console import Console

from benchmarks.dataflow import create_run
from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.environment import LOG_LEVEL_VARIABLE
from headrace.infra.kafka.clients import Connection, Outgoing, open_consumer, open_producer
from headrace.infra.kafka.topic_offsets import fetch_end_offsets
from headrace.infra.kafka.topic_reader import find_start_positions
from headrace.infra.log import configure_logging
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run, join
from headrace.ledger.follow import ask_ledger
from headrace.ops.audit.report import report
from headrace.ops.figures.status import status
from headrace.schemas import codec
from headrace.schemas.headers import Stamp, outcome_stamp
from headrace.schemas.records import (
    BatchTrained,
    CuratedGroup,
    GroupUse,
    Outcome,
    Sequence,
    Snapshot,
    Task,
    Trajectory,
    TrajectoryGroup,
)
from headrace.schemas.topics import Topics

ROUNDS = 3
BATCH = 32
SAMPLES = 8
PARTITIONS = 8
RUN_ID = "run-1"


def recipe_of(name: str) -> Recipe:
    whole = {
        "name": name,
        "policies": {"solver": {"path": "none"}},
        "workflows": {"sums": {"env": {"use": "arithmetic"}, "policies": {"solver": "solver"}}},
        "kafka": {"partitions": PARTITIONS},
    }
    return Recipe.model_validate(whole)


# --------------------------------------------------------------------------------------------------------- a made run


def records(topics: Topics, groups: int) -> Iterator[Outgoing]:
    """Every record of a closed run: every second group is trained, the others are dropped."""
    for number in range(groups):
        yield from _of_group(topics, number, kept=number % 2 == 0)
    trained = range(0, groups, 2)
    for version, begin in enumerate(range(0, len(trained), BATCH), 1):
        uses = tuple(GroupUse("sums", number) for number in trained[begin : begin + BATCH])
        metrics = {f"metric_{i}": 0.5 for i in range(30)}
        batch = BatchTrained(
            run_id=RUN_ID,
            policy="solver",
            version=version,
            groups=uses,
            base_hash=f"{version - 1:064x}",
            weights_hash=f"{version:064x}",
            metrics=metrics,
        )
        yield Outgoing(topics.batches("solver"), codec.encode(batch), partition=0)
    snapshot = Snapshot(run_id=RUN_ID, component="feed", body=json.dumps({"next": {"sums": groups}}).encode())
    yield Outgoing(topics.state, codec.encode(snapshot), b"feed", partition=0)


def _of_group(topics: Topics, number: int, *, kept: bool) -> Iterator[Outgoing]:
    partition = number % PARTITIONS
    task = Task(run_id=RUN_ID, stream="sums", number=number, workflow="sums", payload='{"prompt": "1 + 1"}')
    stamp = Stamp(RUN_ID, "sums", number)
    yield Outgoing(topics.tasks("sums"), codec.encode(task), stamp.key, stamp.to_headers(), partition)
    members = tuple(Trajectory(f"sums:{number}:{i}", float(i % 2), {}, (Sequence(),)) for i in range(SAMPLES))
    group = TrajectoryGroup(RUN_ID, "sums", number, policy="solver", n_asked=SAMPLES, trajectories=members)
    value, stamp = codec.encode(group), Stamp(RUN_ID, "sums", number, policy="solver")
    yield Outgoing(topics.trajectories("solver"), value, stamp.key, stamp.to_headers(), partition)
    outcome = Outcome(
        run_id=RUN_ID,
        stream="sums",
        number=number,
        policy="solver",
        verdict="kept" if kept else "dropped",
        reason="" if kept else "zero_variance",
        component="curate",
        rewards=(0.0, 1.0) * (SAMPLES // 2),
        lengths=(12,) * SAMPLES,
        n_asked=SAMPLES,
    )
    headers = outcome_stamp(outcome).to_headers()
    yield Outgoing(topics.outcomes("solver"), codec.encode(outcome), stamp.key, headers, partition)
    if kept:
        rewards = tuple(member.reward for member in members)
        curated = CuratedGroup(RUN_ID, "sums", number, group=value, kept=tuple(range(SAMPLES)), rewards=rewards)
        yield Outgoing(topics.curated("solver"), codec.encode(curated), stamp.key, stamp.to_headers(), partition)


def produce(producer: Producer, one: Outgoing) -> None:
    while True:
        try:
            producer.produce(one.topic, one.value, one.key, one.partition, headers=list(one.headers))
        except BufferError:
            producer.poll(0.1)
        else:
            return


# --------------------------------------------------------------------------------------------------------- both sides


@dataclass(frozen=True, slots=True)
class Rate:
    """Records, or groups, a second."""

    wall: float
    cpu: float


def bare(connection: Connection, topics: list[str]) -> Rate:
    """Return the rate of a loop that consumes the topics and counts."""
    partition_ids = find_start_positions(connection, topics)
    ends = {partition_id: end for partition_id, end in fetch_end_offsets(connection, partition_ids).items() if end}
    begin, cpu, count = time.perf_counter(), time.process_time(), 0
    consumer = open_consumer(connection, "bare", enable_partition_eof=True)
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in ends])
    left = len(ends)
    while left:
        for message in consumer.consume(1000, 0.1):
            left -= message.error() is not None
            count += message.error() is None
    consumer.close()
    return Rate(count / (time.perf_counter() - begin), count / (time.process_time() - cpu))


def measure_audit(run: Run) -> Rate:
    """Return the rate of the audit."""
    cpu = time.process_time()
    found = report(run, rests=True, use_store=False)
    # The made run has records and no objects, so no checkpoints either.
    wrong = [problem for problem in found.problems if "has no checkpoint" not in problem]
    assert not wrong, wrong[:3]  # noqa: S101 - else it is no closed run that was measured
    return Rate(found.records_per_s, found.records / (time.process_time() - cpu))


def measure_ledger(run: Run, file: Path) -> tuple[Rate, float]:
    """Return the rate at which an empty ledger is filled, and the CPU seconds of a second `status`."""
    file.unlink(missing_ok=True)
    begin, cpu = time.perf_counter(), time.process_time()
    count = sum(ask_ledger(run, file, lambda ledger: ledger.positions).values())
    rate = Rate(count / (time.perf_counter() - begin), count / (time.process_time() - cpu))
    assert status(run, rests=True, ledger=file).figures.groups.in_flight == 0  # noqa: S101 - of a closed run
    begin = time.perf_counter()
    status(run, rests=True, ledger=file)
    return rate, time.perf_counter() - begin


def measure_decoding(run: Run) -> Rate:
    """Return the rate at which a deep audit decodes groups."""
    found = report(run, rests=True, deep=True, use_store=False).deep
    assert found is not None  # noqa: S101 - it was asked for
    return Rate(found.records_per_s, found.records / found.cpu_seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=100_000, help="number of groups in the run that is written")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds, of which the best counts")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    os.environ.setdefault(LOG_LEVEL_VARIABLE, "warning")
    configure_logging("audit")
    with tempfile.TemporaryDirectory(prefix="headrace-audit-") as folder, EmbeddedKafka(Path(folder)) as broker:
        figures = measure(broker.bootstrap, arguments.groups, arguments.rounds)
    Console().print_json(data=figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(bootstrap: str, groups: int, rounds: int) -> dict[str, float | int | str | None]:
    with create_run(bootstrap, recipe_of(f"audit-{time.time_ns()}")) as address:
        producer = open_producer(address.connection, "made")
        for one in records(Topics(address.run), groups):
            produce(producer, one)
        producer.flush()
        run = join(address)
        topics = run.topics
        read = [topics.tasks("sums"), topics.trajectories("solver"), topics.outcomes("solver")]
        read += [topics.curated("solver"), topics.batches("solver"), topics.state]
        small = [topics.outcomes("solver"), topics.batches("solver"), topics.state]
        sides: dict[str, list[Rate]] = {"bare": [], "audit": [], "bare_small": [], "ledger": []}
        seconds = list[float]()
        for _ in range(rounds):
            sides["bare_small"].append(bare(run.connection, small))
            with tempfile.TemporaryDirectory(prefix="headrace-ledger-") as folder:
                rate, second = measure_ledger(run, Path(folder) / "ledger.sqlite")
            sides["ledger"].append(rate)
            seconds.append(second)
            sides["bare"].append(bare(run.connection, read))
            sides["audit"].append(measure_audit(run))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        deep = measure_decoding(run)
    wall = {side: max(rate.wall for rate in rates) for side, rates in sides.items()}
    cpu = {side: max(rate.cpu for rate in rates) for side, rates in sides.items()}
    return {
        "groups": groups,
        "bare_records_per_s": round(wall["bare"]),
        "audit_records_per_s": round(wall["audit"]),
        "ratio": round(wall["audit"] / wall["bare"], 2),
        "bare_records_per_cpu_s": round(cpu["bare"]),
        "audit_records_per_cpu_s": round(cpu["audit"]),
        "cpu_ratio": round(cpu["audit"] / cpu["bare"], 2),
        "ledger_records_per_cpu_s": round(cpu["ledger"]),
        "ledger_cpu_ratio": round(cpu["ledger"] / cpu["bare_small"], 2),
        "second_status_s": round(min(seconds), 3),
        "deep_groups_per_s": round(deep.wall),
        "deep_groups_per_cpu_s": round(deep.cpu),
        "largest_memory_mb": round(memory / 1024),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "librdkafka": libversion()[0],
    }


if __name__ == "__main__":
    main()
