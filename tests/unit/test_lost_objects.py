"""When a trainer that gets no groups checks the store, and what it does about what is lost."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from headrace.infra.recipe.settings import TrainerSettings as Settings
from headrace.infra.run.run import Run
from headrace.infra.store.object_cache import Uncached
from headrace.infra.store.object_store import Content, ObjectMissing, ObjectStore
from headrace.infra.weights.delta import encode_delta
from headrace.infra.weights.delta_header import Label
from headrace.infra.weights.paths import ANCHOR, DELTA, WHOLE
from headrace.infra.weights.policy_weights import PolicyWeights
from headrace.infra.weights.tensors import Tensor, hash_weights
from headrace.producers.rollout.published_weights import PublishedWeights
from headrace.schemas.records import ClaimCheck
from headrace.trainers.versions.history import WeightStretch
from headrace.trainers.versions.lost_objects import FIRST_CHECK_S, LONGEST_PAUSE_S, StoreChecks
from headrace.trainers.versions.publisher import Base, VersionUploader


class Clock:
    """Seconds that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def checks_until(checks: StoreChecks, clock: Clock, starved_since: float, end: float) -> list[float]:
    at = []
    while clock.now < end:
        clock.now += 1
        if checks.is_due(starved_since):
            at.append(clock.now - starved_since)
    return at


def test_checks_of_the_store_come_ever_more_seldom_while_no_group_comes() -> None:
    clock = Clock()
    checks = StoreChecks(clock)
    at = checks_until(checks, clock, clock.now, clock.now + 5_000)
    assert at[:4] == [FIRST_CHECK_S, 3 * FIRST_CHECK_S, 7 * FIRST_CHECK_S, 15 * FIRST_CHECK_S]
    assert at[-1] - at[-2] == LONGEST_PAUSE_S


def test_a_group_that_comes_begins_the_pauses_anew() -> None:
    clock = Clock()
    checks = StoreChecks(clock)
    checks_until(checks, clock, clock.now, clock.now + 500)
    came = clock.now
    assert checks_until(checks, clock, came, came + 15) == [FIRST_CHECK_S]


def test_the_first_check_reads_no_object_all_others_do_and_from_the_third_on_they_are_applied() -> None:
    clock = Clock()
    checks = StoreChecks(clock)
    checks_until(checks, clock, clock.now, clock.now + FIRST_CHECK_S)
    assert not checks.is_reading
    checks_until(checks, clock, 1000.0, clock.now + 2 * FIRST_CHECK_S)
    assert checks.is_reading
    assert not checks.is_applying
    checks_until(checks, clock, 1000.0, clock.now + 4 * FIRST_CHECK_S)
    assert checks.is_reading
    assert checks.is_applying


def weights(version: int) -> dict[str, Tensor]:
    values = np.arange(4000, dtype="<u2")
    values[:version] += 1
    return {"w": Tensor("BF16", (4000,), memoryview(values.tobytes()))}


class Store:
    """Objects in memory; as a run it has the store's part of one."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.steps = 100
        self.recipe = SimpleNamespace(trainer_of=lambda _: Settings(anchor_share=1000, steps=self.steps))
        self.run_id, self.store = "run-1", cast("ObjectStore", self)

    def put(self, content: Content, _kind: str, suffix: str, *_: object, anew: bool = False) -> ClaimCheck:
        data = content if isinstance(content, bytes) else b"".join(content)
        sha256 = hashlib.sha256(data).hexdigest()
        key = f"{sha256}{'-anew' if anew else ''}{suffix}"
        self.objects[key] = data
        return ClaimCheck("main", key, sha256, len(data))

    def get(self, key: str, sha256: str, _size: int) -> bytes:
        if key not in self.objects:
            raise ObjectMissing(f"{key} does not exist")
        assert hashlib.sha256(self.objects[key]).hexdigest() == sha256
        return self.objects[key]

    def verify(self, key: str, sha256: str, size: int) -> None:
        self.get(key, sha256, size)

    def has_object(self, key: str) -> bool:
        return key in self.objects

    def uploader(self, **more: Any) -> VersionUploader:
        return VersionUploader(cast("Run", self), "solver", (), **more)


def test_a_delta_that_was_wrong_from_the_beginning_is_found_when_it_is_applied() -> None:
    store = Store()
    uploader = store.uploader()
    first, wrong = uploader.upload_version(weights(0), 0), uploader.upload_version(weights(1), 1)
    other = encode_delta(
        weights(0), weights(2), Label("solver", 0, 0, 1), hashes=(first.weights_hash, wrong.weights_hash)
    )
    assert uploader.base is not None
    stretch = WeightStretch(first, (replace(wrong, weights=store.put(other, "weights", ".delta")),))
    uploader.base = replace(uploader.base, stretch=stretch)
    newest = stretch.events[-1]

    assert uploader.reupload_lost_version(read=True) is None, "its bytes are those that were stored"
    found = uploader.reupload_lost_version(read=True, apply=True)
    assert found is not None
    assert (found.kind, found.version, found.weights_hash) == (WHOLE, 1, newest.weights_hash)
    assert PolicyWeights(Uncached(store.store)).load_version([first, newest, found], newest) == weights(1)
    assert uploader.reupload_lost_version(read=True, apply=True) is None, "once"


def test_where_an_epoch_begins_what_is_lost_of_the_last_one_is_replaced_by_an_anchor_of_the_version() -> None:
    store = Store()
    last = store.uploader()
    first, second = last.upload_version(weights(0), 0), last.upload_version(weights(1), 1)
    assert last.base is not None
    here = Base(1, 1, weights(2), hash_weights(weights(2)), last.base.stretch, is_published=False)
    uploader = store.uploader(base=here)
    assert uploader.reupload_lost_version() is None
    assert second.weights is not None
    del store.objects[second.weights.key]

    begun = uploader.reupload_lost_version()
    assert begun is not None
    assert (begun.kind, begun.version, begun.epoch, begun.weights_hash) == (ANCHOR, 1, 1, here.weights_hash)
    store.steps = 1
    at_the_end = store.uploader(base=here).reupload_lost_version()
    assert at_the_end is not None
    assert (begun.final, at_the_end.final) == (False, True), "the last version is marked as such in every epoch"
    third = uploader.upload_version(weights(3), 2, epoch=1)
    assert (third.kind, third.base_hash) == (DELTA, here.weights_hash)
    told = PublishedWeights()
    for event in (first, second, begun, third):
        told.add_event(event)
    newest = told.find_newer(0, 0)[0]
    assert PolicyWeights(Uncached(store.store)).load_version(told.list_ways(), newest) == weights(3)


def test_a_worker_that_joins_where_weights_were_published_whole_once_more_gets_every_later_version() -> None:
    store = Store()
    uploader = store.uploader()
    first = uploader.upload_version(weights(0), 0)
    assert first.weights is not None
    del store.objects[first.weights.key]
    again = uploader.reupload_lost_version()
    assert again is not None
    assert (again.kind, again.version) == (WHOLE, 0)
    seen = PublishedWeights()
    for event in (again, uploader.upload_version(weights(1), 1), uploader.upload_version(weights(2), 2)):
        seen.add_event(event)
    newest = seen.find_newer(-1, 0)[0]
    assert PolicyWeights(Uncached(store.store)).load_version(seen.list_ways(), newest) == weights(2)


def test_a_version_that_is_published_first_ends_the_chance_to_begin_an_epoch_by_an_anchor() -> None:
    store = Store()
    here = Base(1, 1, weights(2), hash_weights(weights(2)), WeightStretch(), is_published=False)
    uploader = store.uploader(base=here)
    assert uploader.upload_version(weights(3), 2, epoch=1).kind == ANCHOR
    assert uploader.reupload_lost_version(read=True, apply=True) is None
