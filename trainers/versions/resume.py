"""Resumes a trainer after its death: from the newest checkpoint, the batches after it, and the window."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.process.signals import StopRequested
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing
from headrace.infra.weights.tensors import WeightsError, hash_weights
from headrace.schemas.records import NamedObject
from headrace.trainers.batches.trained_groups import LineageBroken
from headrace.trainers.health import HEALTH_LOOK_BACK
from headrace.trainers.learner.checkpoint import CheckpointError
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.numerics import list_differences
from headrace.trainers.versions.batch_offsets import BatchOffsets
from headrace.trainers.versions.heartbeat import open_heartbeat
from headrace.trainers.versions.history import History, read_history, read_waiting_groups
from headrace.trainers.versions.publisher import Base, VersionAnnouncer, VersionUploader
from headrace.trainers.versions.remake import hash_learner, load_learner_at, remake

log = structlog.get_logger()

SAY_EVERY_S = 5.0


@dataclass(slots=True)
class ResumedTrainer:
    """A trainer's state when it begins or resumes."""

    learner: Learner
    uploader: VersionUploader
    announcer: VersionAnnouncer
    epoch: int
    weights_hash: str
    """Hash of the learner's weights, as published."""
    positions: dict[PartitionId, int]
    """Offsets from which to read."""
    waiting: list[Message] = field(default_factory=list)
    """Curated records before these positions that were in the window."""
    recent: Sequence[Mapping[str, float]] = ()
    """Metrics of the newest versions, oldest first."""
    offsets: BatchOffsets = field(default_factory=BatchOffsets)
    """Offsets of the records on `batches`."""
    log_hash: str = ""
    """`log_hash` of the newest record on `batches`."""


def resume(run: Run, policy_variant: str, history: History, stop: threading.Event) -> ResumedTrainer:
    """Load the newest checkpoint and train again on the batches after it, up to the last published version.

    Raises StopRequested between two versions, and LineageBroken if their groups are deleted.
    """
    published = history.published
    assert published is not None  # noqa: S101 - checked by the caller
    learner = _load_newest_checkpoint(run, policy_variant, history, history.files)
    if learner.version < max(history.checkpoints):
        history = read_history(run, policy_variant)  # it needs earlier batches than those read
    with open_heartbeat(run, policy_variant, "resuming") as beat:
        _train_again(run, policy_variant, learner, history, _Progress(policy_variant, stop, beat))
    if learner.version < published.version:
        raise LineageBroken(
            f"{run.topics.batches(policy_variant)} holds no batch of version {learner.version + 1}, but version "
            f"{published.version} is published: were records of this topic deleted? The trainer cannot resume; begin a "
            "new run"
        )
    learner.apply_settings(run.recipe.trainer_of(policy_variant), run.recipe.seed)
    waiting, positions = read_waiting_groups(run, policy_variant, history)
    tensors = learner.snapshot_weights()
    got = hash_weights(tensors)
    epoch = _choose_epoch(policy_variant, learner, history, got)
    is_published = (published.weights_hash, published.epoch) == (got, epoch)
    version = published.version if is_published else learner.version
    base = Base(version, epoch, tensors, got, history.stretch, is_published)
    uploader = VersionUploader(run, policy_variant, history.files, base)
    announcer = VersionAnnouncer(run, policy_variant, history.anchor_offset)
    recent = [batch.metrics for batch in history.batches[-HEALTH_LOOK_BACK:]]
    return ResumedTrainer(
        learner,
        uploader,
        announcer,
        epoch,
        got,
        positions,
        waiting,
        recent,
        offsets=history.offsets,
        log_hash=history.last.log_hash if history.last else "",
    )


def _load_newest_checkpoint(run: Run, policy_variant: str, history: History, files: tuple[NamedObject, ...]) -> Learner:
    """Return a learner at the newest readable checkpoint; an older one only costs time."""
    for version in sorted(history.checkpoints, reverse=True):
        try:
            return load_learner_at(run, history.checkpoints[version], files, run.recipe)
        except (ObjectMissing, ObjectCorrupt, WeightsError, CheckpointError) as error:
            # It is missing, damaged or does not fit the model; an older one is tried.
            log.error("checkpoint.unusable", policy=policy_variant, version=version, why=str(error))  # noqa: TRY400 - logged
    raise LineageBroken(
        f"no checkpoint of {policy_variant} in {run.topics.state} can be used ({len(history.checkpoints)} tried): see "
        "the log lines checkpoint.unusable for the causes. Put back the missing objects, or begin a new run"
    )


@dataclass(slots=True)
class _Progress:
    """Reports the progress of a long re-training, and stops it when asked."""

    policy: str
    stop: threading.Event
    beat: Callable[[str], None]
    _said: float = field(default_factory=time.monotonic)

    def report(self, version: int, last: int) -> None:
        """Report a version that was trained again. Raises StopRequested."""
        if self.stop.is_set():
            raise StopRequested(
                f"stopped while the batches after the checkpoint are trained again: done up to version {version}, and "
                f"version {last} is the last; the next start begins at the checkpoint again"
            )
        if time.monotonic() - self._said > SAY_EVERY_S:
            self._said = time.monotonic()
            self.beat(
                f"the batches after the checkpoint are trained again: done up to version {version}, and version {last} "
                "is the last"
            )
            # The trainer goes on from a checkpoint and trains `versions` recorded batches again, now `version` of
            # `last`.
            log.info("trainer.resuming", policy=self.policy, version=version, last=last)


def _train_again(run: Run, policy_variant: str, learner: Learner, history: History, progress: _Progress) -> None:
    """Train again on the batches after the checkpoint; log the first unexplained difference of weights."""
    again = [batch for batch in history.batches if batch.version > learner.version]
    here, alike = learner.fingerprint(), True
    log.info("trainer.resuming", policy=policy_variant, checkpoint=learner.version, versions=len(again))
    for remade in remake(run, policy_variant, learner, again, run.revisions):
        batch = remade.batch
        if alike and batch.fingerprint == here and hash_learner(learner) != batch.weights_hash:
            alike = False
            # A recorded batch trained again gave other weights.
            log.error(
                "version.differs",
                policy=policy_variant,
                version=batch.version,
                expected=batch.weights_hash,
                got=hash_learner(learner),
                why="the same batch on the same hardware gave different weights, which is a defect: please report it",
            )
        progress.report(batch.version, again[-1].version)


def _choose_epoch(policy_variant: str, learner: Learner, history: History, got: str) -> int:
    """Return the epoch to continue with: an epoch is an unbroken chain of weights with one fingerprint."""
    if history.batches:
        last = history.batches[-1]
        epoch, expected, then = last.epoch, last.weights_hash, last.fingerprint
    else:
        start = history.checkpoint
        assert start is not None  # noqa: S101 - the learner comes from one
        epoch, expected, then = start.epoch, start.weights_hash, start.fingerprint
    begun = history.published
    if begun is not None and begun.epoch > epoch:  # begun by an anchor of the same version, with no batch after it
        epoch, expected, then = begun.epoch, begun.weights_hash, learner.fingerprint()
    differing = list_differences(then, learner.fingerprint())
    if got == expected and not differing:
        return epoch
    # The weights or the numerics fingerprint differ from those of the last version.
    log.warning(
        "epoch.begins",
        policy=policy_variant,
        epoch=epoch + 1,
        after_version=learner.version,
        expected=expected,
        got=got,
        fingerprint=differing,
        why="the weights or the numerics fingerprint (libraries, hardware, threads) differ from those of the last "
        "version; training continues in a new epoch",
    )
    return epoch + 1
