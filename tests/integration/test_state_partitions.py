"""Every component has its records on one partition of `state`, and finds them there again."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
from made_run import TINY_MODEL, make_run, tiny_recipe
from test_feeder import (
    QUOTA,
    eval_group,
    eval_message,
    evaluate_until,
    feed_until,
    full,
    numbers,
    say,
)

from headrace.envs.arithmetic import ALPHABET
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.run.own_positions import read_newest_snapshot
from headrace.infra.run.retired import CHECKPOINTS, read_retired
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore
from headrace.ops.retention.collector import Plan, announce
from headrace.producers.feed.evaluator_progress import read_progress
from headrace.schemas.records import ClaimCheck
from headrace.schemas.topics import state_partition, trainer_component
from headrace.trainers.versions.history import read_history, wait_for_examples
from headrace.trainers.versions.publisher import Stored, WindowMark, build_pointer

PARTITIONS = 7
WARM = {"solver": {"model": TINY_MODEL, "alphabet": ALPHABET, "warm_start": {"examples": 20, "held_out": 16}}}


@pytest.fixture
def run(bootstrap: str, store: ObjectStore, run_name: str) -> Run:
    recipe = tiny_recipe(run_name, evaluate={"every": 4, "problems": 4, "samples": 2}, policies=WARM)
    return make_run(bootstrap, store, recipe, state_partitions=PARTITIONS)


def test_each_component_goes_on_from_its_partition(run: Run) -> None:
    feed_until(run, full)
    feed_until(run, full)
    assert numbers(run) == list(range(QUOTA))
    say(run, eval_message(run, eval_group(run, 0, 1.0, 1.0)))
    evaluate_until(
        run,
        lambda evaluator: (
            read_newest_snapshot(run.connection, run.state_partition_id("evaluate"), "evaluate") is not None
        ),
    )
    assert len(read_progress(run).answers) == 1
    claim = ClaimCheck("main", "checkpoints/a", "a", 1)
    checkpoints = [
        build_pointer(run, "solver", {}, WindowMark(version, 0, "hash"), Stored(claim, ())) for version in (1, 2)
    ]
    with closing(TransactionalWriter(run.connection, f"{run.address.run}.gc")) as writer:
        say(run, *checkpoints)
        announce(run, writer, Plan({("solver", CHECKPOINTS): ((1, 1),)}, {}, [], {}))
    history = read_history(run, "solver")
    wait_for_examples(run, "solver", threading.Event())
    assert (list(history.checkpoints), history.retired) == ([2], (1,))
    assert read_retired(run).has_version("solver", CHECKPOINTS, 1)
    partitions = {m.key.partition(b"|")[0].decode(): m.partition for m in read_all(run.connection, [run.topics.state])}
    of_trainer = state_partition(trainer_component("solver"), PARTITIONS)
    assert partitions == {
        **{one: state_partition(one, PARTITIONS) for one in ("feed", "evaluate")},
        **dict.fromkeys(("examples", "checkpoint", "retired"), of_trainer),
    }
