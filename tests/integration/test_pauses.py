"""Processes that are stopped at the worst moments, past their time-outs, and wake after a successor took over.

What a kill never finds: the stopped process goes on, with its memory, its open transaction and its old membership.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from made_records import curated, curator_partitions, played, tasks
from made_run import make_run, publish, tiny_recipe
from said import say
from stoppable import Component, Start, starter, until

from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.errors import FENCED
from headrace.infra.kafka.clients import open_consumer
from headrace.infra.kafka.topic_reader import PartitionId, read_all
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.records import BatchTrained, WeightsPublished

Make = Callable[..., Run]

PARTITIONS = 4
SHORT_SESSION = {"group.consumer.session.timeout.ms": "4000", "group.consumer.min.session.timeout.ms": "4000"}
SHORT_TRANSACTION = {"transaction.timeout.ms": "5000"}
HELD = {"sums": {"env": {"use": "arithmetic"}, "workflow": "played:held", "policies": {"solver": "solver"}}}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker that gives a member up after 4 s of silence."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), config=SHORT_SESSION) as server:
        yield server


@pytest.fixture
def make(kafka: EmbeddedKafka, store: ObjectStore, run_name: str) -> Make:
    def made(suffix: str = "", run_id: str = "run-1", **tables: object) -> Run:
        tables.setdefault("curate", {"snapshot_every_s": 0.3})
        return make_run(kafka.bootstrap, store, tiny_recipe(f"{run_name}{suffix}", **tables), run_id)

    return made


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    yield from starter(tmp_path / "components")


@dataclass
class Pair:
    """A process that is stopped at a point, in a run of its own."""

    run: Run
    point: str
    first: Component

    def until(self, condition: Callable[[], bool], what: str) -> None:
        until(condition, f"{what}, {self.point}")

    def stopped(self) -> bool:
        return self.first.stopped_at(self.point)


def values(run: Run, topic: str) -> list[bytes]:
    return [message.value for message in read_all(run.connection, [topic])]


# ------------------------------------------------------------------------------------------------------------ curators


def curate(start: Start, run: Run, slot: str, client: Mapping[str, str] = SHORT_TRANSACTION) -> Component:
    return start("curate", "--run", str(run.address), "--policy", "solver", "--slot", slot, client=client)


def concluded(run: Run) -> int:
    return len({message.key for message in read_all(run.connection, [run.topics.outcomes("solver")])})


def assert_curated_exactly_once(run: Run) -> None:
    """What the curators wrote is, record for record, what one curator's memory makes of the whole input."""
    topics, states = run.topics, curator_partitions(run)
    written = [topics.outcomes("solver"), topics.curated("solver")]
    wanted: dict[PartitionId, list[tuple[bytes, bytes]]] = defaultdict(list)
    for message in read_all(run.connection, [topics.trajectories("solver")]):
        for outgoing in states[message.partition].handle(message):
            if outgoing.topic in written:
                wanted[outgoing.topic, outgoing.partition].append((outgoing.key, outgoing.value))
    found: dict[PartitionId, list[tuple[bytes, bytes]]] = defaultdict(list)
    for message in read_all(run.connection, written):
        found[message.topic, message.partition].append((message.key, message.value))
    for partition_id, records in wanted.items():
        assert [key for key, _ in found[partition_id]] == [key for key, _ in records], partition_id
    assert found == wanted


@pytest.mark.faults
def test_a_curator_that_wakes_after_its_partitions_moved_changes_nothing(make: Make, start: Start) -> None:
    points = ["curate.handled", "curate.begun", "curate.produced", "curate.offsets_sent", "curate.committing"]
    runs = [make(f"-{i}") for i in range(len(points))]
    pairs = [Pair(run, point, curate(start, run, "a")) for run, point in zip(runs, points, strict=True)]
    for pair in pairs:
        say(pair.run, *played(pair.run, range(60)))
    for pair in pairs:
        pair.until(lambda run=pair.run: concluded(run) == 60, "the first groups are concluded")
        pair.first.arm(pair.point)
        say(pair.run, *played(pair.run, range(30, 120), attempt=1))
        curate(start, pair.run, "b")  # it takes longer to start than the first takes to get there
    for pair in pairs:
        pair.until(pair.stopped, "the curator stands")
    for pair in pairs:
        pair.until(lambda run=pair.run: concluded(run) == 120, "the successor concludes all")
        pair.first.wake()
        say(pair.run, *played(pair.run, range(90, 180), attempt=2))
    for pair in pairs:
        pair.until(lambda run=pair.run: concluded(run) == 180, "all groups are concluded")
        assert_curated_exactly_once(pair.run)


# ------------------------------------------------------------------------------------------------------------- trainer


def versions(run: Run) -> list[int]:
    return [codec.decode(value, WeightsPublished).version for value in values(run, run.topics.weights("solver"))]


def test_a_trainer_that_wakes_after_its_successor_has_finished_publishes_nothing(make: Make, start: Start) -> None:
    trainer = {"steps": 4, "groups_per_batch": 4, "minibatches": 2, "max_staleness": 50, "checkpoint_every": 2}
    pairs = []
    for point in ("train.after_upload", "train.committing"):
        run = make(f"-{len(pairs)}", trainer=trainer)
        # The third time: version 0 is published in the same steps, and version 2 comes with a checkpoint.
        first = start("train", "--run", str(run.address), "--policy", "solver", armed={point: "stop 3"})
        pairs.append(Pair(run, point, first))
        say(run, *curated(run, range(30)))
    for pair in pairs:
        pair.until(pair.stopped, "the trainer stands")
        start("train", "--run", str(pair.run.address), "--policy", "solver")
    for pair in pairs:
        pair.until(lambda run=pair.run: versions(run)[-1:] == [4], "the successor trains to the end")
        pair.first.wake()
    for pair in pairs:
        pair.until(lambda first=pair.first: first.process.poll() is not None, "the first one ends")
        assert pair.first.process.returncode in (1, os.EX_TEMPFAIL, FENCED)
        assert re.search(r"^error: .*: another process has taken over, or", pair.first.log.read_text(), re.MULTILINE)
        topic = pair.run.topics.batches("solver")
        batches = [codec.decode(value, BatchTrained) for value in values(pair.run, topic)]
        assert [batch.version for batch in batches if batch.version >= 0] == [1, 2, 3, 4]
        trained = [(use.stream, use.number) for batch in batches for use in batch.groups]
        assert len(set(trained)) == len(trained) == 16
        assert versions(pair.run) == [0, 1, 2, 3, 4]
        assert {batch.epoch for batch in batches} == {0}, "the hash chain was never cut"


# ------------------------------------------------------------------------------------------------------------- workers


def rollout(start: Start, run: Run, name: str) -> Component:
    return start("rollout", "--run", str(run.address), "--name", name)


def times_played(run: Run) -> Counter[int]:
    found = read_all(run.connection, [run.topics.trajectories("solver")])
    return Counter(Stamp.from_headers(message.headers).number for message in found)


def commit_metadata(run: Run) -> list[str]:
    """What the workers' group committed beside its offsets, by partition."""
    consumer = open_consumer(run.connection, "look", run.topics.rollout_group("sums"))
    partitions = [TopicPartition(run.topics.tasks("sums"), partition) for partition in range(PARTITIONS)]
    found = [tp.metadata or "" for tp in consumer.committed(partitions, timeout=60)]
    consumer.close()
    return found


@pytest.mark.kafka
def test_a_worker_that_wakes_hours_after_its_tasks_were_redone_adds_nothing(
    make: Make, start: Start, tmp_path: Path
) -> None:
    run, go = make(workflows=HELD), tmp_path / "go"
    publish(run, 0)
    first, curator = rollout(start, run, "w1"), curate(start, run, "a")
    say(run, *tasks(run, range(4), until=str(go)), *tasks(run, range(4, 12)))
    # Of every partition the first task is held back, and the two after it are done.
    until(lambda: all('"done":"1-2"' in metadata for metadata in commit_metadata(run)), "the done marks")
    second = rollout(start, run, "w2")
    until(lambda: bool(second.said("partitions.assigned")), "the second worker joins")
    first.arm("rollout.played")
    go.touch()
    until(lambda: first.stopped_at("rollout.played"), "the first worker stands before it produces")
    until(lambda: len(times_played(run)) == 12, "the second worker does what was not done")
    assert times_played(run) == Counter(range(12)), "what was done before the rebalances is not done again"

    until(lambda: concluded(run) == 12, "all is concluded")
    curator.kill()
    curate(start, run, "a")
    first.wake()
    until(lambda: times_played(run).total() > 12, "the first worker publishes its group, far too late")
    say(run, *tasks(run, range(12, 20)))
    until(lambda: concluded(run) == 20, "all is concluded")
    assert_curated_exactly_once(run)
