"""`headrace compact` on a real broker and store: who joins far behind fetches a few objects, whatever went wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from made_run import but_for_checkpoints, make_run, tiny_recipe
from said import say

from headrace.infra.environment import FAILPOINTS_VARIABLE
from headrace.infra.kafka.clients import Outgoing
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import Run
from headrace.infra.store.object_sources import WeightObjects
from headrace.infra.store.object_store import ObjectStore
from headrace.infra.weights.delta import encode_delta, read_delta
from headrace.infra.weights.delta_header import Label
from headrace.infra.weights.merging import merge_deltas
from headrace.infra.weights.paths import ANCHOR, DELTA, MERGED
from headrace.infra.weights.tensor_file import encode_safetensors
from headrace.infra.weights.tensors import Tensor, hash_weights
from headrace.ops.audit.report import report
from headrace.ops.compaction.compactor import compact
from headrace.ops.figures.weights_history import weights_history
from headrace.ops.lineage.lineage import version_lineage
from headrace.ops.opened_run import OpenedRun
from headrace.ops.plain_json import plain
from headrace.producers.engines.contract import Engine, EngineStats
from headrace.producers.rollout.pauses import Pauses
from headrace.producers.rollout.run_follower import RunFollower
from headrace.producers.rollout.weight_loader import WeightLoader
from headrace.schemas import codec
from headrace.schemas.records import BatchTrained, ClaimCheck, WeightsPublished

VALUES, CHANGED = 20_000, 200
LIMIT_S = 300


class Published:
    """A run whose trainer published an anchor and deltas, each version trained from the one before it."""

    def __init__(self, run: Run, deltas: int) -> None:
        self.run = run
        self.events: list[WeightsPublished] = []
        self._rng = np.random.default_rng(0)
        self._items = self._rng.integers(0, 1 << 16, VALUES).astype("<u2")
        self.anchor()
        self.deltas(deltas)

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {"w": Tensor("BF16", (VALUES,), memoryview(self._items.tobytes()))}

    def anchor(self) -> None:
        self._publish(encode_safetensors(self.tensors), self.tensors, kind=ANCHOR)

    def deltas(self, count: int) -> None:
        for _ in range(count):
            last, base = self.events[-1], self.tensors
            self._items[self._rng.integers(0, VALUES, CHANGED)] += 1
            data = encode_delta(base, self.tensors, Label("solver", 0, last.version, last.version + 1))
            self._publish(data, base, kind=DELTA, base_version=last.version, base_hash=last.weights_hash)

    def _publish(self, data: bytes, base: Mapping[str, Tensor], **more: Any) -> None:
        version, found = len(self.events), hash_weights(self.tensors)
        event = WeightsPublished(
            self.run.run_id, "solver", version=version, weights_hash=found,
            weights=self.run.put(data, "weights"), metrics={"full_bytes": 2.0 * VALUES}, **more,
        )  # fmt: skip
        self.events.append(event)
        self.say(event)
        if version:
            batch = BatchTrained(self.run.run_id, "solver", version=version, weights_hash=found)
            self.say(replace(batch, base_hash=hash_weights(base)))

    def say(self, *records: WeightsPublished | BatchTrained) -> None:
        topics = self.run.topics
        for record in records:
            is_batch = isinstance(record, BatchTrained)
            topic = topics.batches("solver") if is_batch else topics.weights("solver")
            say(self.run, Outgoing(topic, codec.encode(record), partition=0))

    def merged(self) -> list[WeightsPublished]:
        messages = read_all(self.run.connection, [self.run.topics.weights("solver")])
        events = [codec.decode(message.value, WeightsPublished) for message in messages]
        return [event for event in events if event.kind == MERGED]

    def compact(self, every: int) -> list[WeightsPublished]:
        """Compact once; return all merged deltas that are announced."""
        self.told = compact(OpenedRun(self.run, rests=False), None, every, threading.Event(), once=True)
        return self.merged()

    def objects(self) -> set[str]:
        store = self.run.store
        found = store._bucket.client.list_objects(store.address.bucket, prefix=store.address.prefix, recursive=True)
        return {str(one.object_name) for one in found}


class Counted:
    """The run's objects, and which were asked for."""

    def __init__(self, objects: WeightObjects) -> None:
        self.asked: list[ClaimCheck] = []
        self._objects = objects

    def get(self, claim: ClaimCheck) -> memoryview:
        self.asked.append(claim)
        return self._objects.get(claim)

    def drop(self, claim: ClaimCheck) -> None:
        self._objects.drop(claim)


class Loaded:
    """An engine that keeps what it is given."""

    def __init__(self) -> None:
        self.served: dict[str, int] = {}
        self.hash = ""

    def load(self, policy: str, version: int, weights: Mapping[str, Tensor]) -> None:
        self.hash = hash_weights(weights)
        self.served = {policy: version}

    def versions(self) -> dict[str, int]:
        return self.served

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, 0, 0, 0, 0.0)


def joined(published: Published) -> list[ClaimCheck]:
    """Let a worker's follower join from nothing; return what it fetched when it serves the newest version."""
    objects, engine = Counted(published.run.weights_cache), Loaded()
    follower = RunFollower(published.run, ("solver",), "joiner")
    follower.start()
    try:
        assert follower.caught_up.wait(LIMIT_S)
        follower.use_loader(WeightLoader(cast("Engine", engine), follower.published, objects, Pauses()))
        newest, end = published.events[-1], time.monotonic() + LIMIT_S
        while engine.served != {"solver": newest.version} and time.monotonic() < end:
            assert follower.error is None
            time.sleep(0.05)
        assert (engine.served, engine.hash) == ({"solver": newest.version}, newest.weights_hash)
    finally:
        follower.stop()
    return objects.asked


def object_of(event: WeightsPublished) -> ClaimCheck:
    assert event.weights is not None
    return event.weights


@pytest.fixture
def run(bootstrap: str, store: ObjectStore, run_name: str) -> Run:
    return make_run(bootstrap, store, tiny_recipe(run_name))


def test_a_joiner_fetches_the_anchor_one_merged_delta_and_what_came_since(run: Run) -> None:
    published = Published(run, deltas=40)
    (first,) = published.compact(every=16)
    assert (first.base_version, first.version, first.base_hash) == (0, 40, published.events[0].weights_hash)
    published.deltas(2)
    events = published.events
    asked = joined(published)
    assert asked == [events[0].weights, first.weights, events[41].weights, events[42].weights]
    assert sum(claim.size_bytes for claim in asked) <= 1.3 * asked[0].size_bytes
    assert published.told == [f"solver: merged versions 0 to 40 into {object_of(first).size_bytes:,} bytes"]
    assert published.compact(every=16) == [first], "two deltas may go unmerged"
    why = (
        "2 deltas are newer than version 40, where the last merged delta ends; deltas are merged when more than 16 are"
    )
    assert published.told == [f"solver: nothing to merge: {why} not merged yet (--every)"]

    published.deltas(15)
    before, second = published.compact(every=16)
    assert before == first
    assert (second.base_version, second.version) == (0, 57)
    singles = [read_delta(run.get(object_of(event))) for event in events[1:]]
    whole = object_of(second)
    assert run.get(whole) == merge_deltas(singles), "in pieces or at once, the bytes are the same"
    assert joined(published) == [events[0].weights, second.weights]

    published.say(first, second)
    assert joined(published) == [events[0].weights, second.weights], "said twice is as said once"
    found = plain(report(run, rests=True, deep=True))
    assert but_for_checkpoints(found["problems"]) == []
    assert version_lineage(run, "solver", 57).object_key == object_of(events[57]).key
    told = plain(weights_history(run, None))
    assert [one["version"] for one in told["versions"]] == list(range(58))
    assert told["join"] == {"objects": 2, "bytes": asked[0].size_bytes + whole.size_bytes}


@pytest.mark.weights
def test_a_compactor_beside_a_run_merges_what_comes_until_it_is_told_to_stop(run: Run) -> None:
    published, stop = Published(run, deltas=1), threading.Event()
    words = (OpenedRun(run, rests=False), "solver", 3, stop)
    beside = threading.Thread(target=compact, args=words, kwargs={"once": False}, daemon=True)
    beside.start()
    published.deltas(4)
    end = time.monotonic() + LIMIT_S
    while not published.merged() and time.monotonic() < end:
        time.sleep(0.3)
    published.deltas(4)
    while published.merged()[-1].version < 8 and time.monotonic() < end:
        time.sleep(0.3)
    stop.set()
    beside.join(LIMIT_S)
    assert not beside.is_alive()
    assert [event.base_version for event in published.merged()] == [0, 0]


@pytest.mark.weights
@pytest.mark.parametrize(
    ("point", "objects", "said"), [("before_upload", 0, 0), ("after_upload", 1, 0), ("announced", 1, 1)]
)
def test_a_compactor_that_is_killed_leaves_nothing_that_the_next_one_does_not_find(
    run: Run, tmp_path: Path, point: str, objects: int, said: int
) -> None:
    published = Published(run, deltas=4)
    before = published.objects()
    (tmp_path / f"compact.{point}").write_text("kill")
    words = ["-m", "headrace", "compact", "--run", str(run.address), "--every", "3", "--once"]
    environment = {**os.environ, FAILPOINTS_VARIABLE: str(tmp_path)}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, check=False, timeout=LIMIT_S)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = published.objects() - before
    assert (len(left), len(published.merged())) == (objects, said)
    (merged,) = published.compact(every=3)
    assert left <= {object_of(merged).key}
    assert published.objects() == before | {object_of(merged).key}
