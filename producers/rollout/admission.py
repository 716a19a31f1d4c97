"""Which tasks a worker may start now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.producers.rollout.conclusions import Concluder
from headrace.producers.rollout.follower import WeightFollower
from headrace.producers.rollout.slots import Reservation, Slots
from headrace.schemas.records import Task

MOST_UNDELIVERED = 64
"""Tasks whose groups wait for the store or the broker; with more, none is started."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Implements `started_task.Gate`: by the run's end, recipe, weights, undelivered tasks and places."""

    follower: WeightFollower
    concluder: Concluder
    slots: Slots

    def admit(self, task: Task) -> Reservation | Literal["run_end", "unknown_revision"] | None:
        """See `Gate`."""
        is_training = task.purpose != "eval"
        if is_training and self.follower.ended:
            return "run_end"
        if task.revision not in self.follower.recipes:
            return "unknown_revision"
        if is_training and self.follower.behind(self.concluder.context.engine.versions()):
            return None
        if self.concluder.delivering >= MOST_UNDELIVERED:
            return None
        return self.slots.reserve(task.n_asked)
