"""What passes between the intake's thread and the event loop: a task whose start is committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.decoding import Refusal
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.producers.rollout.slots import Reservation
from headrace.schemas.records import Task

TaskVerdict = Literal["play", "run_end", "poison", "dead"]
"""What is to be done with a task; all but `play` conclude it at once."""

NotAdmitted = Literal["run_end", "unknown_revision", "no_slots"]
"""`run_end`: it is to be concluded unplayed. `unknown_revision`: its revision was not read yet, and perhaps never will
be. `no_slots`: too few slots are free for it."""

NOT_REFUSED = Refusal("", "")
"""Refusal of a task that is played: none."""


@dataclass(frozen=True, slots=True)
class StartedTask:
    """A task whose start is committed. `task` is None for a dead letter."""

    partition_id: PartitionId
    message: Message
    task: Task | None
    verdict: TaskVerdict
    refusal: Refusal = NOT_REFUSED
    """Why it is not played."""
    reservation: Reservation | None = None
    ownership: int = 0
    """Number of the intake's ownership that it was started in; in a later one its offset may be another run's task."""

    def release_slots(self) -> None:
        """Free the slots of the episodes that have not ended."""
        if self.reservation is not None:
            self.reservation.close()


class Gate(Protocol):
    """Decides, in the intake's thread, what may start."""

    def admit(self, task: Task) -> Reservation | NotAdmitted | None:
        """Return slots for the task's episodes, why it has none, or None: no task of its topic may start now."""

    def is_written(self, revision: int) -> bool:
        """Return whether the recipe topic has a revision, which was not read yet then; True while nobody answers."""
