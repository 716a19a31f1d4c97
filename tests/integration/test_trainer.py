"""The trainer on a real broker and store: versions, lineage, resume to the same bits, the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
import transformers
from made_run import make_run, tiny_recipe
from said import say
from trained_run import batches, curated, feed, has_made, published, start_trainer, until

from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import Run, read_revisions
from headrace.infra.store.object_cache import Uncached
from headrace.infra.store.object_store import ObjectStore
from headrace.infra.weights.folder import write_weights
from headrace.infra.weights.paths import ANCHOR, DELTA, WHOLE
from headrace.infra.weights.policy_weights import PolicyWeights
from headrace.infra.weights.tensors import hash_weights
from headrace.ops.dead_letters.listing import listing
from headrace.schemas import codec
from headrace.schemas.records import TrajectoryGroup

Spawn = Callable[[Run], BaseProcess]


@pytest.fixture
def train() -> Iterator[Spawn]:
    """Start a trainer; whatever still runs at the end is killed."""
    started: list[BaseProcess] = []

    def start(run: Run) -> BaseProcess:
        started.append(start_trainer(run))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.join()


def test_a_killed_trainer_comes_back_to_the_same_bits_and_trains_every_group_once(
    bootstrap: str, store: ObjectStore, run_name: str, train: Spawn
) -> None:
    trainer = {"steps": 6, "groups_per_batch": 4, "minibatches": 2, "max_staleness": 8, "checkpoint_every": 2}
    straight = make_run(bootstrap, store, tiny_recipe(f"{run_name}-a", trainer=trainer))
    killed = make_run(bootstrap, store, tiny_recipe(f"{run_name}-b", trainer=trainer))
    groups = [curated(number, version=0, stale=100) for number in range(4 * 6 + 2)]
    feed(straight, groups)
    until(lambda: has_made(straight, 6), train(straight))

    feed(killed, groups[:14])
    first = train(killed)
    # Version 3 is past the checkpoint of version 2, and two groups wait in the window.
    until(lambda: len(batches(killed)) == 3, first)
    first.kill()
    first.join()
    feed(killed, groups[14:])
    second = train(killed)
    until(lambda: has_made(killed, 6), second)

    for run in (straight, killed):
        trained = [(use.stream, use.number) for batch in batches(run) for use in batch.groups]
        assert len(trained) == len(set(trained)) == 24
        versions = [event.version for event in published(run)]
        assert versions == sorted(set(versions)), "none twice"
        assert {0, 2, 4, 6} <= set(versions), "whatever has a checkpoint is published"
        assert {event.epoch for event in published(run)} == {0}, "the hash chain was never cut"
    events = {event.version: event.weights_hash for event in published(killed)}
    made = {batch.version: batch.weights_hash for batch in batches(killed)}
    assert events.items() - made.items() == {(0, events[0])}, "the weights that are published are those of the batch"
    assert len({b.weights_hash for b in batches(killed)}) == 6
    resumed_on = [b.fingerprint for b in batches(killed)]
    assert all(print_ == resumed_on[0] for print_ in resumed_on)


@pytest.mark.training
def test_versions_are_trained_again_with_the_recipe_that_they_were_made_with(
    bootstrap: str, store: ObjectStore, run_name: str, train: Spawn
) -> None:
    trainer = {"steps": 5, "groups_per_batch": 4, "minibatches": 2, "max_staleness": 8, "checkpoint_every": 2}
    recipe = tiny_recipe(run_name, trainer=trainer)
    run = make_run(bootstrap, store, recipe)
    feed(run, [curated(number, stale=100) for number in range(12)])
    first = train(run)
    until(lambda: len(batches(run)) == 3, first)
    first.kill()
    first.join()
    other = tiny_recipe(run_name, trainer={**trainer, "learning_rate": 0.01, "minibatches": 4})
    revision = replace(read_revisions(run.address)[-1], revision=1, recipe=other.to_json())
    say(run, Outgoing(run.topics.recipe, codec.encode(revision), partition=0))
    feed(run, [curated(number, stale=100) for number in range(12, 20)])
    until(lambda: has_made(run, 5), train(run))
    assert {event.epoch for event in published(run)} == {0}, "version 3 came out the same again"
    assert [batch.revision for batch in batches(run)] == [0, 0, 0, 1, 1]


def test_what_is_published_loads_with_plain_transformers_and_has_the_hash_it_names(
    bootstrap: str, store: ObjectStore, run_name: str, train: Spawn, tmp_path: Path
) -> None:
    run = make_run(bootstrap, store, tiny_recipe(run_name))
    feed(run, [curated(number) for number in range(4)])
    until(lambda: len(published(run)) == 2, train(run))
    anchor, event = published(run)
    assert (anchor.kind, event.kind, event.base_hash) == ("anchor", "delta", anchor.weights_hash)
    tensors = PolicyWeights(run.weights_cache).load_version([anchor, event], event)
    assert hash_weights(tensors) == event.weights_hash
    write_weights(tensors, tmp_path, event.weights_hash)
    for file in anchor.files:
        assert file.claim is not None
        (tmp_path / file.name).write_bytes(run.get(file.claim))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.decode(tokenizer.encode("1+2=3")) == "1+2=3"
    assert model.config.hidden_size == 32


@pytest.mark.training
def test_a_trainer_that_gets_no_groups_publishes_whole_what_the_store_has_lost_and_so_may_its_successor_go_on(
    bootstrap: str, store: ObjectStore, run_name: str, train: Spawn
) -> None:
    trainer = {"steps": 5, "groups_per_batch": 4, "minibatches": 2, "max_staleness": 8, "anchor_share": 1000}
    run = make_run(bootstrap, store, tiny_recipe(run_name, trainer=trainer))
    feed(run, [curated(number, stale=100) for number in range(8)])
    first = train(run)
    until(lambda: has_made(run, 2), first)
    lost = published(run)[1].weights
    assert lost is not None
    store.delete(lost.key)

    until(lambda: published(run)[-1].kind == WHOLE, first)
    feed(run, [curated(number, stale=100) for number in range(8, 12)])
    until(lambda: has_made(run, 3), first)
    first.kill()
    first.join()
    feed(run, [curated(number, stale=100) for number in range(12, 16)])
    until(lambda: has_made(run, 4), train(run))

    found = published(run)
    assert [event.kind for event in found] == [ANCHOR, DELTA, DELTA, WHOLE, DELTA, DELTA]
    offsets = [m.offset for m in read_all(run.connection, [run.topics.weights("solver")])]
    assert {event.anchor_offset for event in found[4:]} == {offsets[3]}, "who joins later reads back to there"
    tensors = PolicyWeights(Uncached(store)).load_version(found[3:], found[-1])
    assert hash_weights(tensors) == found[-1].weights_hash


def test_a_curated_record_that_cannot_be_used_is_a_dead_letter_and_training_goes_on(
    bootstrap: str, store: ObjectStore, run_name: str, train: Spawn
) -> None:
    run = make_run(bootstrap, store, tiny_recipe(run_name))
    say(run, Outgoing(run.topics.curated("solver"), b"garbage", partition=0))
    torn, early = replace(curated(4), group=curated(4).group[:-9]), curated(8, version=7)
    longer_than_the_context = curated(12, lengths=(65, 66))
    of_another = replace(codec.decode(curated(16).group, TrajectoryGroup), tokenizer_hash="f00d")
    feed(run, [torn, early, longer_than_the_context, replace(curated(16), group=codec.encode(of_another))])
    feed(run, [curated(number) for number in range(4)])
    until(lambda: len(batches(run)) == 1, train(run))
    assert [letter.reason for letter in listing(run)] == ["undecodable", *["unusable"] * 4]
    assert any("generated with another tokenizer (BLAKE3 f00d…)" in letter.detail for letter in listing(run))
    assert any("tokens, but the trainer's model takes at most 64: shorten" in letter.detail for letter in listing(run))
