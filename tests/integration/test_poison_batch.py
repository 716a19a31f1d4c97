"""A group over which the trainer's process ends without a word, each time that it is trained on."""

from __future__ import annotations

from multiprocessing.process import BaseProcess

import deadly_loss
import pytest
from made_run import make_run, tiny_recipe
from topic_limits import set_limit
from trained_run import batches, curated, feed, has_made, start_trainer, until

from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore
from headrace.ops.dead_letters.listing import read_dead_letters
from headrace.trainers.versions.history import read_history

STEPS = 4
LETHAL = 5
MOST_DEATHS = 6
"""In the first life, in the second where the first had not committed version 1, three times over a whole batch, then
over half of one: that is the smallest, and it holds the lethal group."""
TRAINER = {
    "steps": STEPS,
    "groups_per_batch": 4,
    "minibatches": 2,
    "max_staleness": 20,
    "checkpoint_every": 2,
    "loss": {"use": "deadly_loss:deadly"},
}


@pytest.mark.training
def test_a_batch_that_ends_the_trainer_at_each_start_becomes_smaller_and_then_dead_letters(
    bootstrap: str, store: ObjectStore, run_name: str, trainers: list[BaseProcess]
) -> None:
    run = make_run(bootstrap, store, tiny_recipe(run_name, trainer=TRAINER, kafka={"partitions": 1}))
    groups = [curated(number, stale=100) for number in range(4 * STEPS + 2)]
    groups[LETHAL] = curated(LETHAL, stale=100, lengths=(30, 31))
    feed(run, groups)

    for _ in range(MOST_DEATHS):
        trainers.append(start_trainer(run))
        trainers[-1].join(120)
        assert trainers[-1].exitcode == deadly_loss.EXIT_CODE
        assert made(run) in ([], [1])
        if noted(run) == (2, 4):
            break
    trainers.append(start_trainer(run))
    until(lambda: has_made(run, STEPS), trainers[-1])

    assert made(run) == [1, 2, 3, 4]
    letters = read_dead_letters(run)
    assert [(letter.reason, letter.number) for letter in letters] == [("poison", 4), ("poison", LETHAL)]
    assert all("version 2" in letter.detail and "groups: 2" in letter.detail for letter in letters)
    trained = [[use.number for use in batch.groups] for batch in batches(run)]
    assert trained == [[0, 1, 2, 3], [6, 7, 8, 9], [10, 11, 12, 13], [14, 15, 16, 17]], "whole batches again"


def made(run: Run) -> list[int]:
    return [batch.version for batch in batches(run)]


def noted(run: Run) -> tuple[int, int]:
    begun = read_history(run, "solver").begun
    return (begun.version, begun.times) if begun else (-1, 0)


@pytest.mark.training
def test_a_batch_whose_record_kafka_refuses_is_blamed_for_nothing(
    bootstrap: str, store: ObjectStore, run_name: str, trainers: list[BaseProcess]
) -> None:
    trainer = {**TRAINER, "loss": "ppo", "steps": 2}
    run = make_run(bootstrap, store, tiny_recipe(run_name, trainer=trainer, kafka={"partitions": 1}))
    feed(run, [curated(number, stale=100) for number in range(8)])
    set_limit(run.connection, run.topics.batches("solver"), 200)

    for _ in range(MOST_DEATHS):  # as many as would make the batch smaller, and then dead letters
        trainers.append(start_trainer(run))
        trainers[-1].join(120)
        assert trainers[-1].exitcode == 1
    assert noted(run) in ((-1, 0), (1, 0))
    set_limit(run.connection, run.topics.batches("solver"), 1 << 20)
    trainers.append(start_trainer(run))
    until(lambda: has_made(run, 2), trainers[-1])

    assert [[use.number for use in batch.groups] for batch in batches(run)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert list(read_dead_letters(run)) == []
