"""The object that the intake's thread passes to the event loop: a task whose start is committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.decoding import Refusal
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.producers.rollout.intake.slots import Reservation
from headrace.schemas.records import Task

TaskVerdict = Literal["play", "run_end", "poison", "dead"]
"""How to treat a task; every verdict except `play` concludes it at once."""

NotAdmitted = Literal["run_end", "unknown_revision", "no_slots"]
"""`run_end`: conclude the task without playing it. `unknown_revision`: its revision is not read yet, and may never
come. `no_slots`: too few slots are free for it."""

NOT_REFUSED = Refusal("", "")
"""The empty refusal of a task that is played."""


@dataclass(frozen=True, slots=True)
class StartedTask:
    """A task whose start is committed. `task` is None for a dead letter."""

    partition_id: PartitionId
    message: Message
    task: Task | None
    verdict: TaskVerdict
    refusal: Refusal = NOT_REFUSED
    """Why the task is not played."""
    reservation: Reservation | None = None
    ownership: int = 0
    """Number of the ownership in which it was started; in a later ownership its offset may be another run's task."""

    def release_slots(self) -> None:
        """Free the slots of the episodes that have not ended."""
        if self.reservation is not None:
            self.reservation.close()


class Gate(Protocol):
    """Decides, in the intake's thread, which tasks may start."""

    def try_admit(self, task: Task) -> Reservation | NotAdmitted | None:
        """Return slots for the task's episodes, or why it gets none, or None if no task of its topic may start now."""

    def is_written(self, revision: int) -> bool:
        """Return whether the recipe topic has a revision that this worker has not read; True while Kafka is away."""
