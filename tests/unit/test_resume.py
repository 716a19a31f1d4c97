"""Epochs: when the chain of weights is cut, and who hears of it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import cast

import pytest
from structlog.testing import capture_logs
from test_publisher import Store, weights

from headrace.infra.errors import UsageError
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.process.signals import StopRequested, begin_attempts
from headrace.infra.run.run import Run
from headrace.infra.weights.paths import ANCHOR
from headrace.ops.offline.retrain import _find_checkpoint
from headrace.schemas.records import BatchTrained, CheckpointPointer, ClaimCheck, WeightsPublished
from headrace.trainers.learner.learner import Learner
from headrace.trainers.start import _publish_unpublished
from headrace.trainers.versions.history import History, WeightStretch, _fold_event
from headrace.trainers.versions.publisher import Base, VersionUploader
from headrace.trainers.versions.resume import ResumedTrainer, _choose_epoch, _Progress

HERE = {"torch": "2.8", "threads": "1"}


class Resumed:
    """A learner that is where its batches end."""

    version = 7

    def fingerprint(self) -> dict[str, str]:
        return HERE


def history(fingerprint: dict[str, str], epoch: int = 2) -> History:
    last = BatchTrained(version=7, epoch=epoch, weights_hash="w7", fingerprint=fingerprint)
    return History(batches=[last], last=last)


def epoch(past: History, got: str) -> int:
    return _choose_epoch("solver", cast(Learner, Resumed()), past, got)


def test_an_epoch_goes_on_where_hash_and_fingerprint_are_those_of_the_last_version() -> None:
    assert epoch(history(HERE), "w7") == 2


@pytest.mark.parametrize(("got", "expected"), [("w7-begun", 3), ("w7", 4), ("else", 4)])
def test_an_epoch_that_an_anchor_has_begun_goes_on_where_its_weights_are_these(got: str, expected: int) -> None:
    past = history({"device": "elsewhere"})
    past.published = WeightsPublished(version=7, epoch=3, weights_hash="w7-begun")
    assert epoch(past, got) == expected


@pytest.mark.parametrize(("fingerprint", "got"), [(HERE, "other"), ({**HERE, "threads": "2"}, "w7")])
def test_a_new_epoch_begins_where_one_of_them_is_another(fingerprint: dict[str, str], got: str) -> None:
    with capture_logs() as logs:
        assert epoch(history(fingerprint), got) == 3
    assert [(line["event"], line["after_version"]) for line in logs] == [("epoch.begins", 7)]


def test_before_the_first_batch_the_checkpoint_of_version_0_is_compared() -> None:
    start = CheckpointPointer(version=0, weights_hash="w0", fingerprint={**HERE, "cpu": "another"})
    assert epoch(History(checkpoints={0: start}), "w0") == 1


@pytest.mark.parametrize("epoch", [2, 3])
def test_a_version_that_was_left_unpublished_is_published_at_the_start_in_a_new_epoch_too(epoch: int) -> None:
    store, settings = Store(), SimpleNamespace(device="cpu", steps=9, anchor_every=50, anchor_share=9.0)
    run = cast(Run, SimpleNamespace(run_id="one", put=store.put, recipe=SimpleNamespace(trainer_of=lambda _: settings)))
    base = Base(7, epoch, weights(7), "w7", WeightStretch(), is_published=False)
    learner = SimpleNamespace(version=7, snapshot_weights=lambda: weights(7))
    announced: list[WeightsPublished] = []
    announcer = SimpleNamespace(announce=lambda _, event: announced.append(event))
    resumed = SimpleNamespace(
        learner=learner, uploader=VersionUploader(run, "solver", (), base), announcer=announcer, epoch=epoch
    )
    past = history(HERE)
    for published in (7, 5):
        past.published = WeightsPublished(version=published, epoch=2)
        _publish_unpublished(cast(ResumedTrainer, resumed), past, cast(TransactionalWriter, None), threading.Event())
    assert [(event.version, event.epoch, event.kind) for event in announced] == [(7, epoch, ANCHOR)]


def test_a_long_re_training_says_how_far_it_is_and_hears_that_it_shall_stop() -> None:
    stop, said = threading.Event(), list[str]()
    progress = _Progress("solver", stop, said.append)
    progress.report(3, 9)
    assert said == [], "a short one says nothing"
    progress._said -= 60
    progress.report(4, 9)
    assert said == [
        "the batches after the checkpoint are trained again: done up to version 4, and version 9 is the last"
    ]
    stop.set()
    with pytest.raises(StopRequested, match=r"done up to version 5, and version 9 is the last"):
        progress.report(5, 9)


def test_a_process_told_to_stop_in_the_midst_of_long_work_ends_in_peace() -> None:
    stop = threading.Event()
    for attempt in begin_attempts(stop):
        with attempt:
            stop.set()
            raise StopRequested("told to stop")
    assert attempt.was_stopped


def take_events(past: History, *events: tuple[str, int]) -> None:
    for offset, (kind, version) in enumerate(events):
        weights = ClaimCheck(size_bytes=100 + offset)
        _fold_event(past, WeightsPublished(kind=kind, version=version, weights=weights), offset)


def test_a_merged_delta_is_no_version_of_a_trainers_past() -> None:
    past = History()
    take_events(past, ("anchor", 0), ("delta", 1), ("merged", 1))
    assert past.published is not None
    assert past.published.kind == "delta"
    assert (past.stretch.whole_bytes, past.stretch.delta_bytes, past.anchor_offset) == (100, 101, 0)


def test_weights_that_are_published_whole_once_more_are_no_version_and_deltas_go_on_from_there() -> None:
    past = History()
    take_events(past, ("anchor", 0), ("delta", 1), ("whole", 1), ("delta", 2))
    assert past.published is not None
    assert past.published.version == 2
    assert [event.kind for event in past.stretch.events] == ["whole", "delta"]
    assert (past.stretch.whole_bytes, past.stretch.delta_bytes, past.anchor_offset) == (102, 103, 2)


def test_a_checkpoint_that_was_retired_is_told_with_those_that_are_there() -> None:
    there = {version: CheckpointPointer(version=version) for version in (0, 60)}
    past = History(checkpoints=there, retired=(20, 40))
    for begin, checkpoint in ((None, 0), (10, 0), (60, 60), (99, 60)):
        assert _find_checkpoint(past, begin, "policy p") == checkpoint
    for begin in (40, 59):
        with pytest.raises(
            UsageError,
            match=r"`headrace gc` has retired the checkpoint of version 40 of policy p: .* that are left, 0, 60",
        ):
            _find_checkpoint(past, begin, "policy p")
