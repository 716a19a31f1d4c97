"""Groups that are trained on again: read back from the log, resumed and re-trained bit by bit, and nothing doubled."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from made_run import make_run, tiny_recipe
from trained_run import (
    batches,
    command,
    curated,
    curated_message,
    feed,
    outcomes,
    replay,
    start_trainer,
    train_to,
    until,
)

from headrace.infra.kafka.clients import Outgoing, get_admin
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.run.first_uses import CuratedReplay, find_first_uses
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore, StoreAddress
from headrace.ops.lineage import inspection
from headrace.ops.lineage.lineage import version_lineage
from headrace.schemas import codec
from headrace.schemas.records import CuratedGroup
from headrace.trainers.batches.trained_groups import LineageBroken, read_trained_groups

STEPS = 8
BATCH = 4
TRAINER = {
    "steps": STEPS,
    "groups_per_batch": BATCH,
    "minibatches": 2,
    "max_staleness": 20,
    "checkpoint_every": 3,
    "advantage": {"use": "lite_ppo"},
}
"""Advantages that depend on the whole batch."""


def script() -> list[CuratedGroup]:
    """What the curator says: two replays beside every third group, two uses of one group in one batch among them."""
    said: list[CuratedGroup] = []
    indices: dict[int, int] = {}
    uses: dict[int, int] = {}
    for number in range(20):
        indices[number] = len(said)
        said.append(curated(number, stale=100))
        if number % 3 == 2:
            for old in (number // 2, number // 2 if number > 9 else 0):
                uses[old] = uses.get(old, 0) + 1
                first = said[indices[old]]
                said.append(replay(first, uses[old], len(said) - indices[old], weight=1 / uses[old]))
    return said


def keys(groups: list[CuratedGroup]) -> list[tuple[int, int]]:
    return [(group.number, group.use) for group in groups]


def trained(run: Run) -> list[tuple[int, int]]:
    return [(use.number, use.use) for batch in batches(run) for use in batch.groups]


def scripted_run(bootstrap: str, store: ObjectStore, name: str) -> Run:
    """A run of one partition: arrival is the order of offsets then, and so are the batches."""
    run = make_run(bootstrap, store, tiny_recipe(name, trainer=TRAINER, kafka={"partitions": 1}))
    said = script()
    with closing(TransactionalWriter(run.connection, f"{name}.curate.test")) as writer:
        for begin in range(0, len(said), 3):
            feed(run, said[begin : begin + 3], writer)
    return run


@pytest.fixture(scope="module")
def undisturbed(bootstrap: str, store_address: StoreAddress) -> Iterator[Run]:
    """A run that is trained to its end by one trainer."""
    name = f"replayed-{uuid.uuid4().hex[:8]}"
    with ObjectStore(replace(store_address, prefix=f"{name}/")) as store:
        run = scripted_run(bootstrap, store, name)
        train_to(run, STEPS)
        yield run


@pytest.mark.training
def test_every_use_is_trained_once_and_in_order_as_the_curator_said(undisturbed: Run) -> None:
    assert trained(undisturbed) == keys(script())[: STEPS * BATCH]
    assert any(use > 1 for _, use in trained(undisturbed))
    batch = next(b for b in batches(undisturbed) if len({use.number for use in b.groups}) < BATCH)
    assert len({(use.number, use.use) for use in batch.groups}) == BATCH, "two uses of one group in one batch"
    share = sum(use.use > 0 for use in batch.groups) / BATCH
    assert batch.metrics["replay_share"] == share
    assert batch.metrics["replay_age_mean"] == batch.version - 1, "all are of version 0"


@pytest.mark.training
def test_batches_with_replays_are_trained_again_to_the_same_hashes(undisturbed: Run, tmp_path: Path) -> None:
    answer = command(tmp_path, "retrain", "--run", str(undisturbed.address), "--json")
    assert answer.code == 0, answer.err
    found = json.loads(answer.out)
    assert (found["ok"], [one["version"] for one in found["versions"]]) == (True, list(range(1, STEPS + 1)))


@pytest.mark.training
def test_lineage_and_inspection_show_the_group_of_a_replay_and_its_weight(undisturbed: Run) -> None:
    batch = next(b for b in batches(undisturbed) if any(use.use == 2 for use in b.groups))
    index = next(index for index, use in enumerate(batch.groups) if use.use == 2)
    made_of = version_lineage(undisturbed, "solver", batch.version).groups
    assert not any(group.missing for group in made_of)
    assert (made_of[index].use, made_of[index].kept, made_of[index].rewards) == (2, (0, 1, 2, 3), (0.0, 1.0, 0.0, 1.0))
    [(_, wholes)] = read_trained_groups(undisturbed, "solver", [batch])
    first = curated(batch.groups[index].number, stale=100)
    assert (wholes[index].curated.group, wholes[index].curated.weight) == (first.group, 0.5)
    seen = inspection.step(undisturbed, "solver", batch.version, slice(None)).groups[index]
    advantages = [one.sequences[0].advantage for one in seen.trajectories]
    assert seen.use == 2
    assert all(advantage is not None and 0 < abs(advantage) < 0.6 for advantage in advantages), "halved"


@pytest.mark.training
def test_a_replay_whose_first_use_has_left_the_log_is_evicted_and_the_trainer_goes_on(
    bootstrap: str, store: ObjectStore, run_name: str, trainers: list[BaseProcess]
) -> None:
    run = make_run(bootstrap, store, tiny_recipe(run_name, trainer={**TRAINER, "steps": 1}, kafka={"partitions": 1}))
    groups = [curated(number, stale=100) for number in range(5)]
    feed(run, groups[:1])
    feed(run, [*groups[1:4], replay(groups[0], 1, back=4), replay(groups[1], 1, back=4)])
    shorten(run, 2)
    trainers.append(start_trainer(run))
    until(lambda: len(batches(run)) == 1, trainers[-1])
    assert trained(run) == [(1, 0), (2, 0), (3, 0), (1, 1)]
    until(lambda: bool(outcomes(run)), trainers[-1])
    [outcome] = outcomes(run)
    assert (outcome.number, outcome.use, outcome.verdict, outcome.component) == (0, 1, "missing", "train")
    shorten(run, 4)
    with pytest.raises(LineageBroken, match="no longer holds"):
        list(read_trained_groups(run, "solver", batches(run)))


def shorten(run: Run, offset: int) -> None:
    partition = TopicPartition(run.topics.curated("solver"), 0, offset)
    for future in get_admin(run.connection).delete_records([partition]).values():
        future.result(120)


@pytest.mark.training
def test_first_uses_are_found_behind_markers_and_aborted_records_and_those_of_others_are_not(
    bootstrap: str, store: ObjectStore, run_name: str
) -> None:
    run = make_run(bootstrap, store, tiny_recipe(run_name, kafka={"partitions": 2}))
    topic, groups = run.topics.curated("solver"), [curated(number) for number in range(300)]
    with closing(TransactionalWriter(run.connection, f"{run_name}.curate.test")) as writer:
        feed(run, [replace(groups[4], run_id="run-0", group=b"another run's")], writer)
        for number in range(0, 300, 3):
            feed(run, groups[number : number + 3], writer)
            if number == 30:
                abort(run, [curated_message(run, groups[0])] * 400)
        feed(run, [replay(groups[4], 1), replay(groups[5], 1)], writer)
    there = {(message.partition, *key_of(message.value)): message for message in read_all(run.connection, [topic])}
    asked = [
        CuratedReplay(partition, there[partition, number, 1].offset, "sums", number, back)
        for partition, number, back in ((0, 4, 0), (0, 4, 148), (1, 5, 148))
    ]
    gone = [CuratedReplay(0, there[0, 298, 0].offset, "sums", 77, back=5), CuratedReplay(1, 2, "sums", 299, back=1)]
    found = find_first_uses(run.connection, topic, run.run_id, [*asked, *gone])
    assert found.keys() == set(asked)
    for one, message in found.items():
        first = codec.decode(message.value, CuratedGroup)
        assert (first.number, first.use, first.group) == (one.number, 0, groups[one.number].group)
    alone = find_first_uses(run.connection, topic, run.run_id, [asked[0]])
    assert alone[asked[0]].offset == found[asked[0]].offset


def abort(run: Run, records: list[Outgoing]) -> None:
    """Write records that are on the log, and were never committed."""
    with closing(TransactionalWriter(run.connection, f"{run.address.run}.curate.aborts")) as writer:
        writer.begin()
        writer.produce(records)
        writer.flush()
        writer.abort()


def key_of(value: bytes) -> tuple[int, int]:
    group = codec.decode(value, CuratedGroup)
    return group.number, group.use
