"""What once made a run stand still for ever: it comes to its end by itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command import UNLEARNED
from test_faults import joined, started, suspended, until, version

from headrace.infra.kafka.clients import Message, open_producer
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import Run
from headrace.ops.opened_run import open_run
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.records import DeadLetter, TrajectoryGroup

STEPS = 12
FAR = 900


def number_of(message: Message) -> int:
    return int(dict(message.headers)["number"])


def poison(run: Run) -> int:
    """Be a worker that is wrong about the version: one group on every partition; return on how many there is one."""
    issued = {number_of(m) for m in read_all(run.connection, [run.topics.tasks("sums")])}
    played = list(read_all(run.connection, [run.topics.trajectories("solver")]))
    in_flight = sorted(issued - {number_of(message) for message in played})
    last = codec.decode(played[-1].value, TrajectoryGroup)
    producer = open_producer(run.connection, "wrong")
    by_partition = {number % run.recipe.kafka.partitions: number for number in in_flight}
    for partition, number in by_partition.items():
        group = replace(last, number=number, head_version=FAR)
        stamp = replace(Stamp.from_headers(played[-1].headers), number=number, head_version=FAR)
        topic = run.topics.trajectories("solver")
        producer.produce(topic, codec.encode(group), stamp.key, partition, headers=list(stamp.to_headers()))
    assert producer.flush(120) == 0
    return len(by_partition)


@pytest.mark.faults
def test_a_run_of_which_every_partition_is_poisoned_ends_with_the_poisoned_groups_as_dead_letters(
    tmp_path: Path,
) -> None:
    data, summary = tmp_path / "data", tmp_path / "summary.json"
    words = ("up", "arithmetic", "--data", data, "--summary", summary, "--plain", *UNLEARNED)
    words = (*words, "--set", f"trainer.steps={STEPS}", "--set", "evaluate.every=0")
    with started(tmp_path / "up.txt", *words) as up:
        run = joined(data)
        until(lambda: version(run) >= 3, "version 3 is published")
        with suspended(up, "rollout"):
            count = poison(run)
        code = up.wait(300)
    told = json.loads(summary.read_text())
    assert count == run.recipe.kafka.partitions
    assert (code, told["versions"], told["audit"]["ok"]) == (0, STEPS, True), (tmp_path / "up.txt").read_text()
    assert 0 < told["dead_letters"] <= count, "one that its worker had sent before it was frozen is a repetition"
    with open_run(None, data) as opened:
        topic = opened.run.topics.dead_letters
        dead = [codec.decode(m.value, DeadLetter) for m in read_all(opened.run.connection, [topic])]
    assert {letter.reason for letter in dead} == {"time_travel"}
