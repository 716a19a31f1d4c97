"""Steps and publications beside one another: what waits for what, what is left out, and what comes out when."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from patience import PATIENCE_S

from headrace.infra.run.run import Run
from headrace.infra.weights.tensors import Tensor, hash_weights
from headrace.schemas.records import ClaimCheck, WeightsPublished
from headrace.trainers.learner.checkpoint import Stored
from headrace.trainers.learner.learner import Learner
from headrace.trainers.versions import pipeline
from headrace.trainers.versions.history import WeightStretch
from headrace.trainers.versions.pipeline import MOST_AHEAD, MadeVersion, Pipeline, StepRequest
from headrace.trainers.versions.publisher import Base, VersionUploader
from headrace.trainers.versions.step_note import RunningStep, StepNote


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def weights(version: int) -> dict[str, Tensor]:
    return {"w": Tensor("U8", (1,), memoryview(bytes([version])))}


class OneValue:
    """The learner of a scene, which nobody but the pipeline holds."""

    version = 0

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.snapshot_weights, self.checkpoint = scene.copy, scene.storing

    def step(self, sequences: Any, version: int) -> dict[str, float]:
        return self._scene.step(sequences, version)


class Scene:
    """A learner of one value, and an uploader that waits to be let go on."""

    def __init__(self) -> None:
        self.version = 0
        self.begun: list[int] = []
        self.published: list[int] = []
        self.copies: list[bytearray] = []
        """All memory that published values were copied into."""
        self.may_publish = threading.Semaphore(0)
        self.broken = 0
        learner = OneValue(self)
        self.learner = weakref.ref(learner)
        self.uploader = SimpleNamespace(upload_version=self.upload_version, base=None)
        self.note = SimpleNamespace(hold=lambda *_: nullcontext(), found=RunningStep())
        self.pipeline = Pipeline(
            cast("Run", None),
            cast("Learner", learner),
            cast("VersionUploader", self.uploader),
            cast("StepNote", self.note),
        )

    def copy(self, into: dict[str, Tensor] | None) -> dict[str, Tensor]:
        if into is None:
            self.copies.append(bytearray(1))
            into = {"w": Tensor("U8", (1,), memoryview(self.copies[-1]))}
        into["w"].data[0] = self.version
        return into

    def storing(self, _run: Run) -> Callable[[threading.Event], Stored]:
        return lambda _given_up: Stored(ClaimCheck(), ())

    def step(self, _sequences: Any, version: int) -> dict[str, float]:
        if version == self.broken:
            raise ArithmeticError(f"version {version}")
        self.version = version
        return {}

    def upload_version(
        self, named: dict[str, Tensor], version: int, *, epoch: int, given_up: threading.Event
    ) -> WeightsPublished:
        self.begun.append(version)
        assert (epoch, given_up.is_set()) == (0, False)
        assert self.may_publish.acquire(timeout=PATIENCE_S)
        base, self.uploader.base = self.uploader.base, Base(version, 0, named, hash_weights(named), WeightStretch())
        for whole in (base, self.uploader.base):
            assert whole is None or hash_weights(weights(whole.version)) == whole.weights_hash == hash_weights(
                whole.tensors
            ), "somebody wrote over what a delta is made of"
        self.published.append(version)
        return WeightsPublished(version=version, weights_hash=hash_weights(named))

    def begin(self, version: int, *, must_publish: bool = False, checkpoint: bool = False) -> None:
        until(lambda: self.pipeline.is_free)
        self.pipeline.begin(StepRequest(version, 0, (), must_publish, checkpoint))
        until(lambda: (self.version == version and self.pipeline.is_free) or self.last_is_done())

    def last_is_done(self) -> bool:
        return self.pipeline._in_flight[-1][1].done()

    def out(self) -> MadeVersion:
        until(lambda: self.pipeline.has_version)
        return self.pipeline.take_version()


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.may_publish.release(100)
    scene.pipeline.close()


def test_the_next_step_is_taken_while_a_version_is_on_its_way_and_nothing_comes_out_before_it(scene: Scene) -> None:
    scene.begin(1)
    scene.begin(2)
    assert scene.version == 2
    assert not scene.pipeline.has_version
    assert [request.version for request in scene.pipeline.list_under_way()] == [1, 2]
    scene.may_publish.release(2)
    first, second = scene.out(), scene.out()
    assert [made.request.version for made in (first, second)] == [1, 2]
    assert [made.uploaded.weights_hash for made in (first, second)] == [hash_weights(weights(n)) for n in (1, 2)]
    assert scene.published == [1, 2], "the second waited, and nothing newer came"
    assert scene.pipeline.is_empty


def test_a_step_in_which_the_last_process_died_waits_for_the_versions_before_it(scene: Scene) -> None:
    scene.note.found = RunningStep(version=2, deaths=1)
    scene.begin(1)
    assert not scene.pipeline.is_free, "version 1 would be lost with this process"
    scene.may_publish.release(2)
    scene.out()
    scene.begin(2)
    assert scene.pipeline.is_free


def test_a_version_that_a_newer_one_overtakes_is_left_out_and_still_has_its_hash(scene: Scene) -> None:
    for version in (1, 2, 3):
        scene.begin(version)
    assert not scene.pipeline._in_flight[1][1].result().uploading.done(), "the learner does not hash it"
    scene.may_publish.release(2)
    made = [scene.out() for _ in range(3)]
    assert scene.published == [1, 3]
    assert [one.uploaded.event is None for one in made] == [False, True, False]
    assert [one.uploaded.weights_hash for one in made] == [hash_weights(weights(n)) for n in (1, 2, 3)]


def test_one_that_somebody_waits_for_is_published_in_its_turn(scene: Scene) -> None:
    scene.begin(1)
    scene.begin(2, must_publish=True)
    scene.begin(3)
    scene.may_publish.release(3)
    assert [scene.out().uploaded.event is None for _ in range(3)] == [False] * 3
    assert scene.published == [1, 2, 3]


def test_one_that_has_a_checkpoint_is_published_in_its_turn(scene: Scene) -> None:
    scene.begin(1)
    scene.begin(2, checkpoint=True)
    scene.begin(3)
    scene.may_publish.release(3)
    made = [scene.out().uploaded for _ in range(3)]
    assert [one.event is None for one in made] == [False] * 3
    assert [one.checkpoint is None for one in made] == [True, False, True]


def test_copies_are_written_over_when_nobody_needs_them_and_not_before(scene: Scene) -> None:
    scene.may_publish.release(10)
    for version in range(1, 11):
        scene.begin(version)
        assert scene.out().uploaded.weights_hash == hash_weights(weights(version))
    assert len(scene.copies) == 2
    for version in range(11, 32, 3):
        scene.may_publish = threading.Semaphore(0)  # what was not needed of the last ones
        for number in range(version, version + 3):
            scene.begin(number, must_publish=number % 5 == 0)
        scene.may_publish.release(3)
        made = [scene.out() for _ in range(3)]
        assert [one.uploaded.weights_hash for one in made] == [hash_weights(weights(version + n)) for n in range(3)]


def test_the_learner_waits_when_too_many_versions_are_on_their_way(scene: Scene) -> None:
    for version in range(1, MOST_AHEAD + 1):
        scene.begin(version)
    assert not scene.pipeline.is_free
    assert scene.pipeline.held_up_s == 0
    scene.may_publish.release(1)
    scene.out()
    until(lambda: scene.pipeline.is_free)
    assert 0 < scene.pipeline.held_up_s <= time.monotonic() - scene.pipeline.free_since


def test_a_step_that_fails_is_told_in_its_turn_and_no_other_is_taken(scene: Scene) -> None:
    scene.broken = 2
    scene.begin(1)
    scene.pipeline.begin(StepRequest(2, 0, (), must_publish=False, checkpoint=False))
    until(scene.last_is_done)
    assert not scene.pipeline.is_free
    scene.may_publish.release(1)
    assert scene.out().uploaded.event is not None
    with pytest.raises(ArithmeticError, match="version 2"):
        scene.out()


def test_after_the_end_no_publication_is_begun() -> None:
    scene = Scene()
    scene.begin(1)
    scene.begin(2, must_publish=True)
    until(lambda: scene.begun == [1])
    scene.pipeline.close()
    scene.may_publish.release(2)
    until(lambda: not scene.pipeline._upload_thread._thread.is_alive())
    assert scene.begun == scene.published == [1], "it was under way"


@pytest.mark.parametrize("broken", [0, 2])
def test_after_the_end_an_upload_that_is_under_way_holds_no_learner(broken: int) -> None:
    scene = Scene()
    scene.broken = broken
    scene.begin(1)
    scene.pipeline.begin(StepRequest(2, 0, (), must_publish=False, checkpoint=False))
    until(lambda: scene.begun == [1])
    assert scene.learner() is not None
    scene.pipeline.close()
    gc.collect()
    assert scene.pipeline._upload_thread._thread.is_alive()
    assert scene.learner() is None
    scene.may_publish.release()


def test_a_left_out_version_that_cannot_be_hashed_is_told_in_its_turn(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hash_no_second(named: dict[str, Tensor]) -> str:
        if hash_weights(named) == hash_weights(weights(2)):
            raise MemoryError("no room to hash in")
        return hash_weights(named)

    monkeypatch.setattr(pipeline, "hash_weights", hash_no_second)
    for version in (1, 2, 3):
        scene.begin(version)
    scene.may_publish.release(2)
    until(lambda: scene.published == [1, 3])
    assert scene.out().uploaded.event is not None
    assert scene.pipeline.has_version
    with pytest.raises(MemoryError, match="no room to hash in"):
        scene.out()
