"""Follower and loader with a fake engine and a fake store: what is served, what is refused, what heals."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from patience import PATIENCE_S
from structlog.testing import capture_logs

from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run
from headrace.infra.store.object_sources import WeightObjects
from headrace.infra.store.object_store import ObjectMissing, StoreUnavailable
from headrace.infra.weights.tensor_file import encode_safetensors
from headrace.infra.weights.tensors import Tensor, hash_weights
from headrace.producers.engines.contract import Engine, EngineAway, EngineError, EngineStats, VersionGone
from headrace.producers.rollout import weight_loader
from headrace.producers.rollout.pauses import Pauses
from headrace.producers.rollout.run_follower import RunFollower
from headrace.producers.rollout.weight_loader import FIRST_PAUSE_S, WeightLoader
from headrace.schemas import codec
from headrace.schemas.records import ClaimCheck, NamedObject, RecipeRevision, WeightsPublished
from headrace.schemas.topics import Topics

RECIPE = Recipe.model_validate(
    {
        "name": "r",
        "policies": {"p": {"path": "x"}},
        "workflows": {"w": {"env": {"use": "arithmetic"}, "policies": {"solver": "p"}}},
    },
)


@dataclass
class Store:
    """Objects by key; `away` is raised by every call."""

    objects: dict[str, bytes] = field(default_factory=dict)
    away: bool = False

    def get(self, claim: ClaimCheck) -> memoryview:
        if self.away:
            raise StoreUnavailable("no answer")
        if claim.key not in self.objects:
            raise ObjectMissing(f"{claim.key} does not exist")
        return memoryview(self.objects[claim.key])

    def drop(self, claim: ClaimCheck) -> None:
        pass


@dataclass
class FakeEngine:
    loaded: list[int] = field(default_factory=list)
    held: list[tuple[int, bool]] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)

    def load(self, _policy: str, version: int, weights: Mapping[str, Tensor]) -> None:
        if version in self.refused:
            raise EngineError(f"{sorted(weights)} do not fit")
        self.loaded.append(version)

    def hold(self, _policy: str, version: int, weights: Mapping[str, Tensor] | None = None) -> None:
        if weights is None and version not in {*self.loaded[-1:], *(held for held, _ in self.held)}:
            raise VersionGone("not held")
        self.held.append((version, weights is not None))

    def versions(self) -> dict[str, int]:
        return {"p": self.loaded[-1]} if self.loaded else {}

    def stats(self) -> EngineStats:
        """Every load stops it for a second."""
        return EngineStats(0, 0, 0, 0, 0, 0.0, swap_s=float(len(self.loaded)))


class Scene:
    """A follower, what it reads, and what it loads into."""

    def __init__(self) -> None:
        self.store, self.engine, self.pauses = Store(), FakeEngine(), Pauses()
        run = SimpleNamespace(revisions=(RECIPE,), ended="", topics=Topics("r"), run_id="one", connection=None)
        run.plug_ins = {}
        self.follower = RunFollower(cast("Run", run), ("p",), "test")
        self.loader = WeightLoader(
            cast("Engine", self.engine), self.follower.published, cast("WeightObjects", self.store), self.pauses
        )

    def publish(self, version: int, **changes: Any) -> None:
        tensors = {"w": Tensor("F32", (1,), memoryview(version.to_bytes(4, "little")))}
        data = encode_safetensors(tensors)
        key = f"weights/{version}"
        self.store.objects[key] = data
        claim = ClaimCheck("main", key, hashlib.sha256(data).hexdigest(), len(data))
        record = WeightsPublished(
            run_id="one", policy="p", version=version, weights_hash=hash_weights(tensors), weights=claim
        )
        self.take("r.weights.p", codec.encode(replace(record, **changes)))

    def take(self, topic: str, value: bytes) -> None:
        self.follower.fold_message(Message(topic, 0, 0, b"", value))

    def turn(self) -> list[int]:
        """One turn, however long the follower would wait before it tries again."""
        self.loader._retry_at.clear()
        self.loader.load_newest()
        return self.engine.loaded


def test_of_several_waiting_versions_only_the_newest_is_loaded() -> None:
    scene = Scene()
    for version in range(5):
        scene.publish(version, files=(NamedObject("config.json", ClaimCheck()),) if version == 2 else ())
    assert scene.turn() == scene.turn() == [4]
    taken, files = scene.loader.taken["p"], scene.follower.find_files_record("p")
    assert (taken.version, taken.pause_s, taken.fetched_bytes) == (4, 1.0, len(scene.store.objects["weights/4"]))
    assert (files and files.version) == 2, "the newest that names some"
    scene.publish(3)
    scene.publish(5, weights_hash="another")
    assert scene.turn() == [4]
    assert scene.follower.published["p"].head == 5
    assert scene.loader.taken["p"] is taken, "it still serves that one"


def test_bad_weights_are_never_served_and_the_nearest_good_anchor_heals() -> None:
    scene = Scene()
    scene.publish(0)
    scene.publish(1)
    scene.publish(2, weights_hash="another")
    assert scene.turn() == [1]
    assert "version 2" in scene.pauses.detail
    assert "have hash" in scene.pauses.detail
    scene.publish(3)
    assert scene.turn() == [1, 3]
    assert scene.pauses.detail == ""


def test_a_version_of_an_older_epoch_is_never_served_however_high_its_number() -> None:
    scene = Scene()
    scene.publish(4)
    scene.publish(5, epoch=1)
    scene.publish(6, epoch=0)
    assert scene.turn() == [5]
    scene.publish(7, epoch=0)
    assert scene.turn() == [5]
    forged = Scene()
    forged.publish(4)
    forged.publish(5, epoch=9, weights_hash="another")
    assert forged.turn() == [4], "a record that makes up an epoch stops nothing"
    forged.publish(6)
    assert (forged.turn(), forged.pauses.detail) == ([4, 6], "")


def test_of_several_versions_that_cannot_be_had_the_newest_is_told_of_and_the_pause_grows_once() -> None:
    scene = Scene()
    scene.publish(0)
    scene.turn()
    for version in (1, 2, 3):
        scene.publish(version)
        del scene.store.objects[f"weights/{version}"]
    scene.turn()
    assert scene.pauses.detail == (
        "weights of p: version 3 is not loaded: the anchor of version 3: weights/3 does not exist. "
        "From the next anchor (whole weights) on, versions can be loaded again"
    )
    assert scene.loader._backoffs["p"].next_s() == 2 * FIRST_PAUSE_S


def test_a_torn_object_and_weights_that_do_not_fit_are_refused() -> None:
    scene = Scene()
    scene.publish(0)
    scene.turn()
    scene.publish(1)
    scene.store.objects["weights/1"] = b"torn"
    assert scene.turn() == [0]
    scene.engine.refused.add(2)
    scene.publish(2)
    assert scene.turn() == [0]
    scene.publish(3, weights=None)
    assert scene.turn() == [0]
    assert scene.follower.find_stale({"p": 0}) == (
        "the worker serves p at version 0, more than max_staleness (1) versions behind the newest version, 3"
    )
    assert scene.follower.find_stale({"p": 2}) == ""


def test_a_refused_version_is_tried_again_only_after_a_pause() -> None:
    scene = Scene()
    scene.store.away = True
    scene.publish(0)
    scene.turn()
    scene.store.away = False
    scene.loader.load_newest()
    assert scene.engine.loaded == []
    assert scene.loader._retry_at["p"] > time.monotonic()
    assert scene.turn() == [0]


def test_an_exact_version_is_held_fetched_only_when_it_is_not_served() -> None:
    scene = Scene()
    for version in range(3):
        scene.publish(version)
    scene.turn()
    scene.loader.hold("p", 2)
    scene.loader.hold("p", 1)
    scene.loader.hold("p", 1)
    assert scene.engine.held == [(2, False), (1, True), (1, False)]


def test_groups_of_an_evaluation_that_ask_at_once_fetch_their_version_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, fetched, refused = Scene(), list[str](), threading.Semaphore(0)
    for version in range(3):
        scene.publish(version)
    scene.turn()
    get, hold = scene.store.get, scene.engine.hold

    def slow(claim: ClaimCheck) -> memoryview:
        fetched.append(claim.key)
        for _ in range(4):  # until all have asked the engine and were refused
            assert refused.acquire(timeout=PATIENCE_S)
        return get(claim)

    def counted(policy: str, version: int, weights: Mapping[str, Tensor] | None = None) -> None:
        try:
            hold(policy, version, weights)
        except VersionGone:
            refused.release()
            raise

    monkeypatch.setattr(scene.store, "get", slow)
    monkeypatch.setattr(scene.engine, "hold", counted)
    with ThreadPoolExecutor(4) as pool:
        for asked in [pool.submit(scene.loader.hold, "p", 1) for _ in range(4)]:
            asked.result()
    assert fetched == ["weights/1"]
    assert sorted(scene.engine.held) == [(1, False), (1, False), (1, False), (1, True)]


def test_a_version_that_cannot_be_had_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.publish(0)
    scene.publish(5)
    scene.turn()
    with pytest.raises(
        VersionGone, match=r"version 3 cannot be evaluated: .* of the newest 64 versions, and the newest is 5"
    ):
        scene.loader.hold("p", 3)
    monkeypatch.setattr(weight_loader, "EVENT_PATIENCE_S", 0.0)
    with pytest.raises(VersionGone, match="cannot be evaluated: the record of this version did not come in 0 s"):
        scene.loader.hold("p", 6)
    del scene.store.objects["weights/0"]
    with pytest.raises(VersionGone, match="does not exist"):
        scene.loader.hold("p", 0)


def hold_with(scene: Scene, monkeypatch: pytest.MonkeyPatch, *outcomes: Exception | None) -> list[str]:
    """Hold version 1 in an engine with these outcomes; return the waits before each call of the engine."""
    waits, left = list[str](), list(outcomes)

    def hold(_policy: str, _version: int, _weights: object = None) -> None:
        waits.append(scene.pauses.detail)
        if (outcome := left.pop(0)) is not None:
            raise outcome

    monkeypatch.setattr(weight_loader, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(scene.engine, "hold", hold)
    scene.publish(1)
    scene.loader.hold("p", 1)
    return waits


@pytest.mark.parametrize("error", [EngineError("no room"), VersionGone("gone")])
def test_a_wait_for_an_engine_ends_when_the_version_cannot_be_held(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    scene, away = Scene(), EngineAway("no server is up")
    with pytest.raises(type(error), match=str(error)):
        hold_with(scene, monkeypatch, away, error, error, error)
    assert scene.pauses.detail == ""


def test_a_wait_for_the_store_ends_although_the_engine_is_away_then(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, gone, away = Scene(), VersionGone("not held"), EngineAway("no server is up")
    away_for_a_while(scene.store, monkeypatch)
    waits = hold_with(scene, monkeypatch, gone, gone, away, None)
    assert waits == ["", "", "object store: no answer", "engine: no server is up"]
    assert scene.pauses.detail == ""


def away_for_a_while(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the first call of the store."""
    get, away = store.get, [True]

    def get_later(claim: ClaimCheck) -> memoryview:
        if away:
            away.clear()
            raise StoreUnavailable("no answer")
        return get(claim)

    monkeypatch.setattr(store, "get", get_later)


def test_a_worker_of_an_older_build_ends_at_a_revision_that_it_cannot_read() -> None:
    scene = Scene()
    newer = {**json.loads(RECIPE.to_json()), "a_key_of_the_next_build": 1}
    revision = RecipeRevision(run_id="one", revision=1, recipe=json.dumps(newer))
    with pytest.raises(UsageError, match="this version of Headrace cannot read the run's recipe"):
        scene.take("r.recipe", codec.encode(revision))
    scene.take("r.recipe", codec.encode(replace(revision, run_id="another")))
    assert scene.follower.recipes == {0: RECIPE}


def test_revisions_come_into_force_and_the_end_is_seen_and_taken_back() -> None:
    scene = Scene()
    other = RECIPE.model_copy(update={"rollout": RECIPE.rollout.model_copy(update={"temperature": 0.5})})
    revision = RecipeRevision(run_id="one", revision=1, recipe=other.to_json())
    scene.take("r.recipe", codec.encode(revision))
    assert scene.follower.recipe.rollout.temperature == 0.5
    assert scene.follower.recipes[0].rollout.temperature == 1.0
    with capture_logs() as said:
        scene.take("r.recipe", codec.encode(replace(revision, ended="steps")))
    assert scene.follower.ended == "steps"
    [over] = [one for one in said if one["event"] == "run.over"]
    assert "It ends when no task came for 20 s" in over["now"]
    scene.take("r.recipe", codec.encode(replace(revision, revision=2)))
    assert scene.follower.ended == ""
