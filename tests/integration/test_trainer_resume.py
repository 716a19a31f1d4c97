"""A trainer that is killed at any moment of its work, or comes back elsewhere: same bits, or a new epoch."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from made_run import make_run, tiny_recipe
from said import say
from trained_run import batches, curated, feed, has_made, published, start_trainer, train_to, until

from headrace.infra.kafka.clients import Outgoing
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore, StoreAddress
from headrace.trainers.versions.history import read_history

STEPS = 8
TRAINER = {
    "steps": STEPS,
    "groups_per_batch": 4,
    "minibatches": 2,
    "max_staleness": 20,
    "checkpoint_every": 3,
    "advantage": {"use": "reinforce_pp", "gamma": 0.9},
}
"""Advantages of each token, that depend on the whole batch."""


@pytest.fixture
def run(bootstrap: str, store: ObjectStore, run_name: str) -> Run:
    return fed_run(bootstrap, store, run_name)


@pytest.fixture(scope="module")
def undisturbed(bootstrap: str, store_address: StoreAddress) -> Iterator[list[str]]:
    """Hashes of all versions of a run of which nobody was killed."""
    name = f"undisturbed-{uuid.uuid4().hex[:8]}"
    with ObjectStore(replace(store_address, prefix=f"{name}/")) as store:
        run = fed_run(bootstrap, store, name)
        train_to(run, STEPS)
        yield hashes(run)


def hashes(run: Run) -> list[str]:
    """Of all versions, those too that were not published because the one before was on its way."""
    return [published(run)[0].weights_hash, *(batch.weights_hash for batch in batches(run))]


def fed_run(bootstrap: str, store: ObjectStore, name: str) -> Run:
    """A run with all that its trainer will need, two records that cannot be used among it.

    It has one partition: arrival is the order of offsets then, and the batches are the same for whoever cuts them.
    """
    run = make_run(bootstrap, store, tiny_recipe(name, trainer=TRAINER, kafka={"partitions": 1}))
    say(run, Outgoing(run.topics.curated("solver"), b"garbage", partition=0))
    groups = [curated(number, stale=100) for number in range(4 * STEPS + 3)]
    feed(run, [*groups[:2], replace(groups[2], group=b"torn"), *groups[2:]])
    return run


@pytest.mark.training
def test_a_trainer_that_comes_back_with_other_threads_goes_on_under_a_new_epoch(
    run: Run, tmp_path: Path, trainers: list[BaseProcess]
) -> None:
    (tmp_path / "train.committing").write_text("kill 6")
    trainers.append(start_trainer(run, tmp_path, threads=1))
    trainers[-1].join(120)
    trainers.append(start_trainer(run, threads=2))
    until(lambda: has_made(run, STEPS), trainers[-1])
    made = batches(run)
    assert [batch.version for batch in made] == list(range(1, STEPS + 1)), "a version number never goes back"
    cut = next(index for index, batch in enumerate(made) if batch.epoch == 1)
    assert {(batch.epoch, batch.fingerprint["threads"]) for batch in made[:cut]} == {(0, "1")}
    assert {(batch.epoch, batch.fingerprint["threads"]) for batch in made[cut:]} == {(1, "2")}
    assert next(event.kind for event in published(run) if event.epoch == 1) == "anchor"
    assert [batch.base_hash for batch in made[cut + 1 :]] == [batch.weights_hash for batch in made[cut:-1]]
    pointers = read_history(run, "solver").checkpoints
    assert {version: pointer.epoch for version, pointer in pointers.items()} == {
        version: int(version > cut) for version in (0, 3, 6, STEPS)
    }
