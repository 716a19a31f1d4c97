"""Decides which tasks a worker may start now."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

from headrace.infra.kafka.clients import KafkaAway
from headrace.infra.run.run import Run, read_revisions
from headrace.producers.engines.contract import Engine
from headrace.producers.rollout.conclusions import Concluder
from headrace.producers.rollout.intake.slots import Reservation, Slots
from headrace.producers.rollout.intake.started_task import NotAdmitted
from headrace.producers.rollout.run_follower import RunFollower
from headrace.schemas.records import Task

log = structlog.get_logger()

MOST_UNDELIVERED = 64
"""Most tasks whose groups wait for the store or the broker; with more, no task is started."""
MOST_WAITING = 64
"""Most evaluations that wait for their versions, without slots; with more, no evaluation is started."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Implements `started_task.Gate`. Checks run end, recipe, weights, slots; failed, undelivered, waiting tasks."""

    run: Run
    engine: Engine
    follower: RunFollower
    concluder: Concluder
    slots: Slots
    written: set[int] = field(default_factory=set)
    """Revisions on the recipe topic when it was last read."""

    def try_admit(self, task: Task) -> Reservation | NotAdmitted | None:
        """See `Gate`."""
        is_training = task.purpose != "eval"
        if is_training and self.follower.ended:
            return "run_end"
        if task.revision not in self.follower.recipes:
            return "unknown_revision"
        if is_training and self.follower.find_stale(self.engine.versions()):
            return None
        if is_training and not self.concluder.brake.is_released():
            return None
        too_many_wait = not is_training and self.concluder.waiting >= MOST_WAITING
        if too_many_wait or self.concluder.delivering >= MOST_UNDELIVERED:
            return None
        reserved = self.slots.reserve(task.n_asked)
        if is_training and reserved is not None:
            self.concluder.brake.note_started()
        # After the end of the run training tasks need no slots, so an evaluation may take them all.
        return reserved or (None if self.follower.ended else "no_slots")

    def is_written(self, revision: int) -> bool:
        """See `Gate`. Raises KafkaRefused."""
        if revision not in self.written:
            try:
                self.written.update(one.revision for one in read_revisions(self.run.address))
            except KafkaAway:
                return True
            if revision in self.written:
                # Tasks wait until the worker has read their recipe revision.
                log.warning("revision.behind", revision=revision)
        return revision in self.written
