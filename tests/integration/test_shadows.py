"""A shadow beside its policy on a real broker and store: the same bits where all is the same, and its own where not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from made_records import played
from made_run import make_run, tiny_recipe
from said import say
from stoppable import Component, Start, starter, until
from test_evictions import outgoing, training
from trained_run import batches, curated, curated_message, feed, outcomes, published, start_trainer

from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.run_loop import run_loop
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import Run, join, read_revisions
from headrace.infra.stopwatch import Stopwatch
from headrace.infra.store.object_store import ObjectStore
from headrace.ops.audit.report import report
from headrace.ops.offline.retrain import retrain
from headrace.ops.plain_json import plain
from headrace.schemas import codec
from headrace.schemas.records import BatchTrained, Outcome, Snapshot

STEPS, BATCH, NUMBERS = 6, 4, 78
"""Of the groups every third has signal: those of six batches, and two that are left over."""
TWIN, FREE = "solver.twin", "solver.free"
TRAINER = {
    "steps": STEPS,
    "groups_per_batch": BATCH,
    "minibatches": 2,
    "max_staleness": 20,
    "checkpoint_every": 2,
    "learning_rate": 1e-3,
    "order": "fifo",
}
UNFILTERED = {"chain": ["validate"], "trainer": {"steps": 100, "learning_rate": 3e-3, "max_staleness": 20}}
"""It keeps every group, and never comes to its last version."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    yield from starter(tmp_path)


def made(bootstrap: str, store: ObjectStore, name: str, shadows: dict[str, Any]) -> Run:
    """A run of one partition, so that arrival is the order of offsets, whose groups are all played."""
    recipe = tiny_recipe(name, trainer=TRAINER, kafka={"partitions": 1}, shadows=shadows)
    run = make_run(bootstrap, store, recipe)
    issued = Snapshot(run_id=run.run_id, component="feed", body=json.dumps({"next": {"sums": NUMBERS}}).encode())
    say(run, Outgoing(run.topics.state, codec.encode(issued), b"feed", partition=0), *played(run, range(NUMBERS)))
    return run


def curate(start: Start, run: Run, *words: str, **more: Any) -> Component:
    return start("curate", "--run", str(run.address), "--policy", "solver", "--slot", "0", *words, **more)


def end(run: Run) -> None:
    """Say, as the feeder does, that the run is over."""
    ended = replace(read_revisions(run.address)[-1], ended="steps")
    say(run, Outgoing(run.topics.recipe, codec.encode(ended), partition=0))


def values(run: Run, topic: str) -> list[bytes]:
    return [message.value for message in read_all(run.connection, [topic])]


def concluded(run: Run, line: str) -> int:
    dropped = sum(outcome.verdict != "kept" for outcome in outcomes(run, line))
    return dropped + sum(len(batch.groups) for batch in batches(run, line))


def hashes(run: Run, line: str = "solver") -> list[str]:
    return [batch.weights_hash for batch in batches(run, line)]


def test_a_shadow_of_the_same_chain_and_settings_makes_the_very_same_weights(
    bootstrap: str, store: ObjectStore, run_name: str, start: Start, trainers: list[BaseProcess]
) -> None:
    run = made(bootstrap, store, run_name, {"twin": {}})
    trainers.append(start_trainer(run, variant="twin"))  # it waits for version 0
    curate(start, run, "--variant", "twin")
    curate(start, run)
    trainers.append(start_trainer(run))
    until(
        lambda: {concluded(run, line) for line in run.recipe.policy_variants} == {NUMBERS},
        "both have concluded every number",
    )

    assert values(run, run.topics.curated(TWIN)) == values(run, run.topics.curated("solver"))
    assert len(hashes(run)) == STEPS
    assert hashes(run, TWIN) == hashes(run)
    first, own = published(run)[0], published(run, TWIN)[0]
    assert (own.version, own.weights_hash, own.variant, first.variant) == (0, first.weights_hash, "twin", "")
    assert {batch.variant for batch in batches(run, TWIN)} == {"twin"}
    found = plain(report(run, rests=True))
    assert found["ok"], found["problems"]
    assert found["curated"]["solver.twin"] == found["curated"]["solver"]
    counts = found["shadows"][TWIN]
    assert (counts["trained"], counts["in_flight"], counts["discarded"]) == (
        STEPS * BATCH,
        0,
        found["policies"]["solver"]["discarded"],
    )
    assert plain(retrain(run, TWIN, (None, None)))["ok"]


@pytest.fixture
def begun(bootstrap: str, store: ObjectStore, run_name: str) -> Run:
    """A run of which version 0 is there, for its shadow to begin with."""
    recipe = tiny_recipe(run_name, kafka={"partitions": 1}, shadows={"free": UNFILTERED})
    run = make_run(bootstrap, store, recipe)
    with training(run):
        return run


@pytest.mark.training
def test_a_shadows_groups_grow_old_by_the_versions_of_its_policy(begun: Run) -> None:
    feed(begun, [curated(number, version=0, stale=1) for number in range(3)], line=FREE)
    feed(begun, [curated(3, version=2, stale=1)], line=FREE)
    with training(begun, FREE) as (trainer, _):
        told = outgoing(trainer, lambda told: len(told) >= 4)
        assert [entry.use_id[1] for entry in trainer.scheduler.window.list_waiting()] == [3], (
            "no version of its own is as new"
        )
        assert trainer._pipeline.version == 0
    verdicts = [codec.decode(one.value, Outcome).verdict for one in told if one.topic == begun.topics.outcomes(FREE)]
    assert verdicts == ["expired"] * 3


@pytest.mark.training
def test_a_shadow_trains_on_after_the_runs_end_as_long_as_a_batch_can_be_cut(begun: Run) -> None:
    feed(begun, [curated(number, stale=100) for number in range(2 * BATCH + 1)], line=FREE)
    end(begun)
    with training(join(begun.address), FREE) as (trainer, writer):
        stop = threading.Event()

        def concluded_all() -> bool:
            return concluded(begun, FREE) == 2 * BATCH + 1

        loop = threading.Thread(target=run_loop, args=(trainer, writer, stop, Stopwatch()), daemon=True)
        loop.start()
        until(concluded_all, "the shadow has run dry")
        stop.set()
        loop.join()
    assert [len(batch.groups) for batch in batches(begun, FREE)] == [BATCH, BATCH]
    assert [one.verdict for one in outcomes(begun, FREE)] == ["run_end"]


@pytest.mark.training
def test_what_a_shadows_trainer_cannot_read_is_an_outcome_and_an_offset_in_its_batches(begun: Run) -> None:
    broken = curated_message(begun, curated(0), FREE)
    say(begun, replace(broken, value=broken.value[:-5]))
    with training(begun, FREE) as (trainer, _):
        told = outgoing(trainer, lambda told: len(told) >= 2)
    lost, batch = (codec.decode(told[0].value, Outcome), codec.decode(told[1].value, BatchTrained))
    assert (lost.verdict, lost.reason, lost.number, lost.component) == ("dropped", "undecodable", 0, "train")
    assert [(one.verdict, one.group and one.group.number) for one in batch.evictions] == [("dead", 0)]
    assert begun.topics.dead_letters not in {one.topic for one in told}
