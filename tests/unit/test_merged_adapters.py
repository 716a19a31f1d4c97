"""Merged weights of an adapter on other hardware, where the merge rounds otherwise."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from made_recipes import sums_recipe
from test_lora import LORA, SETTINGS, made, step, written
from tiny_models import SHAPE

from headrace.infra.errors import HeadraceError
from headrace.infra.run.run import Run
from headrace.infra.weights.tensors import hash_weights
from headrace.ops.offline import experiment
from headrace.schemas.records import BatchTrained, CheckpointPointer, ClaimCheck, NamedObject, WeightsPublished
from headrace.trainers.batches.trained_groups import LineageBroken
from headrace.trainers.learner import lora
from headrace.trainers.learner.checkpoint import encode_checkpoint
from headrace.trainers.learner.learner import Learner
from headrace.trainers.versions import resume
from headrace.trainers.versions.history import History
from headrace.trainers.versions.remake import hash_learner

RECIPE = sums_recipe(
    policies={"solver": {"model": SHAPE, "alphabet": "01", "lora": LORA.model_copy(update={"publish": "merged"})}},
    trainer=SETTINGS.model_dump(),
)


class Stored:
    """A run at version 1 of a merged adapter, with its objects."""

    def __init__(self, folder: Path) -> None:
        learner, adapter = made("merged")
        step(learner, 1)
        self.objects = {path.name: path.read_bytes() for path in written(adapter, folder).iterdir()}
        files = tuple(NamedObject(name, ClaimCheck("main", name)) for name in self.objects)
        self.objects["checkpoint"] = b"".join(encode_checkpoint(learner.trained.copy()))
        self.weights_hash, self.here = hash_learner(learner), learner.fingerprint()
        self.pointer = CheckpointPointer(
            policy="solver",
            version=1,
            checkpoint=ClaimCheck("main", "checkpoint"),
            weights_hash=self.weights_hash,
            fingerprint=self.here,
        )
        self.history = History(
            checkpoints={1: self.pointer},
            published=WeightsPublished(policy="solver", version=1, weights_hash=self.weights_hash),
            files=files,
        )

    @property
    def run(self) -> Run:
        get = lambda claim: self.objects[claim.key]  # noqa: E731
        address = SimpleNamespace(run="t")
        whole = {"get": get, "recipe": RECIPE, "topics": RECIPE.topics, "revisions": (RECIPE,), "address": address}
        return cast(Run, SimpleNamespace(**whole))

    def past(self, **pointer: Any) -> History:
        """Return its history, of which the checkpoint's pointer says this and there is no later batch."""
        return replace(self.history, checkpoints={1: replace(self.pointer, **pointer)})

    def resume(self, **pointer: Any) -> resume.ResumedTrainer:
        return resume.resume(self.run, "solver", self.past(**pointer), threading.Event())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return Stored(tmp_path_factory.mktemp("files"))


@pytest.fixture
def stored(trained: Stored, monkeypatch: pytest.MonkeyPatch) -> Stored:
    monkeypatch.setattr(resume, "remake", lambda *_: iter(()))
    monkeypatch.setattr(resume, "read_waiting_groups", lambda *_: ([], {}))
    return trained


@pytest.fixture
def merged_otherwise(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> Stored:
    """The same run on a machine that rounds the sum otherwise."""
    merge = lora._merged_weight

    def round_otherwise(layer: Any) -> torch.Tensor:
        return (merge(layer).float() * (1 + 2**-8)).to(torch.bfloat16).float()

    monkeypatch.setattr(lora, "_merged_weight", round_otherwise)
    return stored


ELSEWHERE = {"cpu_capability": "ELSEWHERE"}
"""The fingerprint of other hardware than this."""


def test_where_the_merge_rounds_otherwise_a_new_epoch_begins_at_the_same_version(merged_otherwise: Stored) -> None:
    resumed = merged_otherwise.resume(fingerprint=ELSEWHERE)
    assert (resumed.learner.version, resumed.epoch) == (1, 1)
    assert resumed.weights_hash == hash_weights(resumed.learner.snapshot_weights()) != merged_otherwise.weights_hash
    assert resumed.uploader.base is not None
    assert not resumed.uploader.base.is_published, "the next version is published whole"


def test_on_the_hardware_that_made_it_a_checkpoint_of_merged_weights_has_their_bits(stored: Stored) -> None:
    resumed = stored.resume()
    assert (resumed.learner.version, resumed.epoch, resumed.weights_hash) == (1, 0, stored.weights_hash)


def test_other_bits_on_the_hardware_that_made_the_checkpoint_are_refused(merged_otherwise: Stored) -> None:
    with pytest.raises(LineageBroken, match=r"no checkpoint of .* can be used \(1 tried\)"):
        merged_otherwise.resume()


def test_a_checkpoint_of_another_version_than_its_pointer_names_is_refused_everywhere(stored: Stored) -> None:
    with pytest.raises(LineageBroken, match=r"no checkpoint of .* can be used \(1 tried\)"):
        stored.resume(version=2, fingerprint=ELSEWHERE)


class Made:
    """A new run of `retrain --into`, and what is written to it before the first batch."""

    def __init__(self, stored: Stored) -> None:
        self.run, self.policy, self.written = stored.run, "solver", list[tuple[str, Any]]()
        self.uploader = SimpleNamespace(files=stored.history.files)

    def upload_version(self, learner: Learner) -> str:
        return hash_learner(learner)

    def checkpoint(self, _learner: Learner, weights_hash: str) -> str:
        return weights_hash

    def write(self, *records: Any) -> None:
        self.written.append(records)


@pytest.mark.parametrize("is_begun", [False, True])
def test_an_experiment_on_other_hardware_begins_with_the_bits_of_this_one_and_does_not_go_on_with_others(
    is_begun: bool, merged_otherwise: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = merged_otherwise.past(fingerprint=ELSEWHERE)
    monkeypatch.setattr(experiment, "read_history", lambda *_: there if is_begun else History())
    monkeypatch.setattr(experiment, "find_groups_run", lambda run: run)
    monkeypatch.setattr(experiment, "remake", lambda *_: iter(()))
    made = Made(merged_otherwise)

    def make_versions() -> None:
        batches = [BatchTrained(policy="solver", version=2)]
        experiment._make_versions(made.run, there, cast(experiment._Output, made), batches, lambda *_: None)

    if is_begun:
        with pytest.raises(HeadraceError, match="continue on the machine that began it"):
            make_versions()
        assert made.written == []
        return
    make_versions()
    [(event, [pointer])] = made.written
    assert event == pointer != merged_otherwise.weights_hash, "the record and the checkpoint name the same weights"
