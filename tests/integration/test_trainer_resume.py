"""A trainer that is killed at any moment of its work, or comes back elsewhere: same bits, or a new epoch."""

from __future__ import annotations

import signal
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
from headrace.infra.store.object_cache import Uncached
from headrace.infra.store.object_store import ObjectStore, StoreAddress
from headrace.infra.weights.policy_weights import PolicyWeights
from headrace.infra.weights.tensors import hash_weights
from headrace.ops.dead_letters.listing import listing
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
POINTS = {
    "uploads": ("before_upload", "after_upload 2", "before_upload 2", "handled 3"),
    "transactions": ("committing", "begun", "produced 2", "committing", "committed 2"),
    "checkpoints": ("after_checkpoint", "before_checkpoint 2", "after_checkpoint"),
}
"""Where one trainer after the other is killed, and which time it comes by there; the first dies making version 0."""


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
@pytest.mark.parametrize("around", POINTS)
def test_a_trainer_killed_in_the_midst_makes_what_an_undisturbed_one_makes(
    run: Run, tmp_path: Path, trainers: list[BaseProcess], undisturbed: list[str], around: str
) -> None:
    for kill in POINTS[around]:
        point, _, count = kill.partition(" ")
        (tmp_path / f"train.{point}").write_text(f"kill {count}")
        trainers.append(start_trainer(run, tmp_path))
        trainers[-1].join(120)
        assert trainers[-1].exitcode == -signal.SIGKILL, kill
        assert (tmp_path / f"train.{point}.hit").read_text() == str(trainers[-1].pid)
        (tmp_path / f"train.{point}.hit").unlink()
    assert 0 < len(batches(run)) < STEPS, "the kills came while it was at work"
    trainers.append(start_trainer(run, tmp_path))
    until(lambda: has_made(run, STEPS), trainers[-1])

    assert hashes(run) == undisturbed
    assert [batch.version for batch in batches(run)] == list(range(1, STEPS + 1)), "none twice, none missing"
    versions = [event.version for event in published(run)]
    assert versions == sorted(set(versions)), "none twice"
    assert {0, 3, 6, STEPS} <= set(versions), "whatever has a checkpoint is published"
    assert {event.weights_hash for event in published(run)} <= set(undisturbed)
    assert {event.epoch for event in published(run)} == {0}
    assert [batch.base_hash for batch in batches(run)] == undisturbed[:-1], "every version begins where the last ended"
    trained = [use.number for batch in batches(run) for use in batch.groups]
    assert sorted(trained) == sorted(set(trained))
    assert [letter.reason for letter in listing(run)] == ["undecodable", "unusable"], "each told once"


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


@pytest.mark.training
def test_a_trainer_that_begins_an_epoch_without_groups_publishes_its_weights_where_the_last_ones_are_lost(
    bootstrap: str, store: ObjectStore, run_name: str, trainers: list[BaseProcess]
) -> None:
    run = make_run(bootstrap, store, tiny_recipe(run_name, trainer={**TRAINER, "anchor_share": 1000}))
    feed(run, [curated(number, stale=100) for number in range(4)])
    trainers.append(start_trainer(run, threads=1))
    until(lambda: len(published(run)) == 2, trainers[-1])
    trainers[-1].kill()
    trainers[-1].join()
    first, lost = published(run)
    assert lost.weights is not None
    store.delete(lost.weights.key)
    trainers.append(start_trainer(run, threads=2))
    until(lambda: len(published(run)) == 3, trainers[-1])
    trainers[-1].kill()
    trainers[-1].join()
    feed(run, [curated(number, stale=100) for number in range(4, 8)])
    trainers.append(start_trainer(run, threads=2))
    until(lambda: has_made(run, 2), trainers[-1])
    begun, last = published(run)[2:]
    assert (begun.kind, begun.version, begun.epoch) == ("anchor", 1, 1)
    assert (last.kind, last.version, last.epoch, last.base_hash) == ("delta", 2, 1, begun.weights_hash)
    tensors = PolicyWeights(Uncached(store)).load_version([first, begun, last], last)
    assert hash_weights(tensors) == last.weights_hash == batches(run)[-1].weights_hash
