"""`headrace retrain` on a run that a trainer made: equal, altered, from elsewhere; and with other settings."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from made_run import TINY_MODEL, make_run, tiny_recipe
from trained_run import Answer, batches, command, curated, feed, published, train_to

from headrace.envs.arithmetic import ALPHABET
from headrace.infra.kafka.clients import Connection, Message, RunAddress, open_producer
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import Run, join
from headrace.infra.store.object_store import ObjectStore, StoreAddress
from headrace.schemas import codec
from headrace.schemas.records import BatchTrained

STEPS = 8
TRAINER = {
    "steps": STEPS,
    "groups_per_batch": 4,
    "minibatches": 2,
    "max_staleness": 20,
    "checkpoint_every": 3,
    "advantage": {"use": "lite_ppo"},
    "batch_norm": True,
}
"""Advantages that depend on the whole batch."""
POLICIES = {"solver": {"model": TINY_MODEL, "alphabet": ALPHABET, "lora": {"rank": 4}}}
"""An adapter, which is made again on the base that lies in the store."""
Change = Callable[[Message], bytes]


@pytest.fixture(scope="module")
def trained(bootstrap: str, store_address: StoreAddress) -> Iterator[Run]:
    """A run whose trainer has made all its versions, with one thread."""
    name = f"trained-{uuid.uuid4().hex[:8]}"
    with ObjectStore(replace(store_address, prefix=f"{name}/")) as store:
        run = make_run(bootstrap, store, tiny_recipe(name, trainer=TRAINER, policies=POLICIES))
        feed(run, [curated(number, stale=100) for number in range(4 * STEPS)])
        train_to(run, STEPS)
        yield run


def copied(run: Run, name: str, change: Change) -> Run:
    """The same run under another name, its records changed as they are copied; empty bytes leave one out."""
    copy = make_run(run.connection.bootstrap, run.store, tiny_recipe(name, trainer=TRAINER, policies=POLICIES))
    pairs = [
        (getattr(run.topics, kind)("solver"), getattr(copy.topics, kind)("solver"))
        for kind in ("curated", "batches", "weights")
    ]
    producer = open_producer(run.connection, "copier")
    for here, there in [*pairs, (run.topics.state, copy.topics.state)]:
        for message in read_all(run.connection, [here]):
            if value := change(message):
                producer.produce(there, value, message.key or None, message.partition)
    assert producer.flush(120) == 0
    return copy


def on_batches(change: Callable[[BatchTrained], BatchTrained]) -> Change:
    def changed(message: Message) -> bytes:
        if ".batches." not in message.topic:
            return message.value
        return codec.encode(change(codec.decode(message.value, BatchTrained)))

    return changed


def retrain(run: Run, folder: Path, *words: str, failpoints: Path | None = None) -> tuple[Answer, dict[str, Any]]:
    answer = command(folder, "retrain", "--run", str(run.address), "--json", *words, failpoints=failpoints)
    return answer, json.loads(answer.out) if answer.out else {}


@pytest.mark.numerics
def test_the_same_batches_give_the_same_hashes_with_as_many_threads_as_the_trainer_had(
    trained: Run, tmp_path: Path
) -> None:
    answer, found = retrain(trained, tmp_path)
    assert answer.code == 0, answer.err
    assert (found["from"], found["to"], found["comparable"], found["ok"]) == (0, STEPS, True, True)
    assert found["fingerprint"]["here"]["threads"] == "1", "though the process had begun with two"
    hashes = [batch.weights_hash for batch in batches(trained)]
    assert [(one["version"], one["expected"]) for one in found["versions"]] == list(enumerate(hashes, 1))
    assert all(one["equal"] and one["got"] == one["expected"] for one in found["versions"])


@pytest.mark.training
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_what_a_gpu_trained_it_trains_again_to_the_same_hashes(
    bootstrap: str, store: ObjectStore, run_name: str, tmp_path: Path
) -> None:
    run = make_run(bootstrap, store, tiny_recipe(run_name, trainer=TRAINER | {"device": "cuda"}, policies=POLICIES))
    feed(run, [curated(number, stale=100) for number in range(4 * STEPS)])
    train_to(run, STEPS)
    answer, found = retrain(run, tmp_path)
    assert answer.code == 0, answer.err
    assert [version["equal"] for version in found["versions"]] == [True] * STEPS


@pytest.mark.training
def test_a_part_is_trained_again_from_the_newest_checkpoint_at_or_below_it(trained: Run, tmp_path: Path) -> None:
    answer, found = retrain(trained, tmp_path, "--from", "5", "--to", "7")
    assert answer.code == 0, answer.err
    assert (found["from"], [one["version"] for one in found["versions"]]) == (3, [4, 5, 6, 7])
    told = command(tmp_path, "retrain", "--run", str(trained.address), "--from", "6")
    assert "All 2 versions after checkpoint 6 came out the same" in told.out
    answer, _ = retrain(trained, tmp_path, "--to", str(STEPS + 1))
    assert answer.code == 2
    assert f"at most {STEPS}, its newest" in answer.err
    answer, _ = retrain(trained, tmp_path, "--from", str(STEPS + 1))
    assert answer.code == 2
    assert f"--from {STEPS + 1} is above {STEPS}, the newest version of policy solver" in answer.err


def test_one_altered_hash_is_found(trained: Run, run_name: str, tmp_path: Path) -> None:
    def alter(batch: BatchTrained) -> BatchTrained:
        return replace(batch, weights_hash="0" * 64) if batch.version == 5 else batch

    answer, found = retrain(copied(trained, run_name, on_batches(alter)), tmp_path)
    assert answer.code == 1, answer.err
    assert not found["ok"]
    assert [one["version"] for one in found["versions"] if not one["equal"]] == [5]


@pytest.mark.training
def test_what_was_made_elsewhere_is_not_comparable_and_what_was_made_here_after_it_is(
    trained: Run, run_name: str, tmp_path: Path
) -> None:
    """Versions to 4 are of another machine; a trainer here went on from the checkpoint of version 3."""

    def elsewhere(batch: BatchTrained, until_version: int) -> BatchTrained:
        if batch.version > until_version:
            return replace(batch, epoch=1)
        return replace(batch, fingerprint={**batch.fingerprint, "cpu": "another"})

    whole = copied(trained, f"{run_name}-a", on_batches(lambda batch: elsewhere(batch, STEPS)))
    told = command(tmp_path, "retrain", "--run", str(whole.address))
    assert told.code == 3
    assert "Not comparable here" in told.out
    assert "cpu: another ->" in told.out
    answer, found = retrain(whole, tmp_path)
    assert (answer.code, found["comparable"], {one["got"] for one in found["versions"]}) == (3, False, {None})

    part = copied(trained, f"{run_name}-b", on_batches(lambda batch: elsewhere(batch, 4)))
    answer, found = retrain(part, tmp_path)
    assert answer.code == 3
    assert [one["equal"] for one in found["versions"]] == [None] * 4 + [True] * 4
    answer, found = retrain(part, tmp_path, "--from", "6")
    assert (answer.code, found["ok"]) == (0, True)


def experiment(run: Run, name: str) -> Run:
    return join(RunAddress(Connection(run.connection.bootstrap), name))


@pytest.mark.training
def test_other_settings_over_the_same_batches_make_a_run_of_their_own_the_same_every_time(
    trained: Run, run_name: str, tmp_path: Path
) -> None:
    first, second = f"{run_name}-a", f"{run_name}-b"
    words = ("--set", "trainer.learning_rate=0.0005", "--set", "trainer.max_staleness=0")
    answer, found = retrain(trained, tmp_path, "--into", first, *words)
    assert answer.code == 0, answer.err
    assert (found["into"], found["ok"]) == (first, True)
    assert not any(one["equal"] for one in found["versions"])
    assert set(found["settings"]) == {"trainer.max_staleness: 20 -> 0", "trainer.learning_rate: 5e-06 -> 0.0005"}
    rate, loss = found["metrics"]["learning_rate"], found["metrics"]["loss"]
    assert (rate["source_last"], rate["into_last"]) == (5e-6, 0.0005)
    assert loss["source_mean"] != loss["into_mean"]

    (tmp_path / "retrain.committing").write_text("kill 5")
    assert retrain(trained, tmp_path, "--into", second, *words, failpoints=tmp_path)[0].code == -signal.SIGKILL
    answer, _ = retrain(trained, tmp_path, "--into", second, "--set", "trainer.learning_rate=0.1")
    assert answer.code == 2
    assert "was begun with other settings, and is not complete" in answer.err
    assert retrain(trained, tmp_path, "--into", second, *words)[0].code == 0

    made = [experiment(trained, name) for name in (first, second)]
    for run in made:
        assert (run.source, run.ended) == (trained.address.run, "steps")
        assert [batch.groups for batch in batches(run)] == [batch.groups for batch in batches(trained)]
        assert [event.version for event in published(run)] == list(range(STEPS + 1))
        hashes = [event.weights_hash for event in published(run)]
        assert hashes[0] == published(trained)[0].weights_hash
        assert [batch.base_hash for batch in batches(run)] == hashes[:-1]
    assert [b.weights_hash for b in batches(made[0])] == [b.weights_hash for b in batches(made[1])]

    answer, found = retrain(made[1], tmp_path, "--from", "4")
    assert (answer.code, found["from"], found["ok"]) == (0, 3, True), answer.err
    answer, _ = retrain(trained, tmp_path, "--into", first)
    assert answer.code == 2
    assert "is already complete" in answer.err
    group = batches(trained)[3].groups[0]
    named = f"{group.stream}:{group.number}"
    for look in (("status",), ("audit",), ("inspect", "--trajectory", f"{named}:0")):
        told = command(tmp_path, *look, "--run", str(made[0].address), "--json")
        assert told.code == 0, told.err + told.out
    told = command(tmp_path, "lineage", "--group", named, "--run", str(made[0].address))
    assert (told.code, trained.address.run in told.err) == (2, True)
