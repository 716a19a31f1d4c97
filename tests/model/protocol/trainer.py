"""What a trainer has instead of torch: light candidates, no metrics, and the model's clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.decoding import MessageRefused
from headrace.infra.recipe.settings import TrainerSettings as Settings
from headrace.infra.run.run import Run
from headrace.schemas import codec
from headrace.schemas.digests import compute_digest
from headrace.schemas.ids import UseId
from headrace.schemas.records import CuratedGroup, TrajectoryGroup
from headrace.schemas.versions import find_version_range
from headrace.trainers import start
from headrace.trainers.batches.groups import DecodedGroup, PreparedGroup
from headrace.trainers.batches.window import T, Waiting
from headrace.trainers.scheduler import BeginStep, Scheduler
from headrace.trainers.trainer import Trainer
from headrace.trainers.versions.pipeline import StepRequest
from headrace.trainers.versions.resume import ResumedTrainer
from protocol.broker import now
from protocol.learner import Learner


class ModelScheduler(Scheduler[T]):
    """By the model's clock: the default was bound before that was in place."""

    def __init__(self, settings: Settings, evaluate_every: int, seed: int, ended: str = "") -> None:
        super().__init__(settings, evaluate_every, seed, ended, clock=now)


class ModelTrainer(Trainer):
    """Nothing is prepared for a learner that needs nothing."""

    def _plan_step(self, step: BeginStep[PreparedGroup]) -> StepRequest:
        return StepRequest(step.version, self._messages.epoch, (), step.must_publish, step.checkpoint, step.batch)


class Metrics:
    """Stands in for `VersionMetrics`."""

    def __init__(self, *_: object) -> None:
        """Nothing is gathered."""

    def of(self, made: object) -> dict[str, float]:
        return dict.fromkeys(("reward_mean", "staleness_mean", "step_s", "wait_s"), 0.0)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Nothing is gathered."""


class Intake:
    """Stands in for `Intake`: the versions of a group are looked at, its tokens are not."""

    def __init__(self, run: Run, policy: str, _l: Any, _f: Any, _w: Any, newest_version: Callable[[], int]) -> None:
        self._newest_version = newest_version
        self._arrivals = 0
        self.arrived_at = now()

    @property
    def version_now(self) -> int:
        return self._newest_version()

    def build_entry_or_eviction(self, message: Message, curated: CuratedGroup) -> Waiting[PreparedGroup]:
        self._arrivals += 1
        self.arrived_at = now()
        group = codec.decode(curated.group, TrajectoryGroup)
        newest = find_version_range(group.trajectories)[1]
        if newest > self._newest_version():
            raise MessageRefused("unusable", f"it has tokens of version {newest}")
        bare = DecodedGroup(curated, group)
        return Waiting(
            UseId.of(curated), curated.min_version, curated.deadline_version, self._arrivals, message.partition,
            message.offset, PreparedGroup(bare, (), ()), digest=compute_digest(message.value),
        )  # fmt: skip


def begin(run: Run, policy: str, writer: Any, stop: threading.Event) -> ResumedTrainer:
    """Stand in for `start._begin`: version 0 without a model."""
    return start._publish_first(run, policy, Learner(), (), writer, stop)  # type: ignore[arg-type]
