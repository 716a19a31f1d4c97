"""Received tasks that have not started, and the decision which of them may start now."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import structlog

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.decoding import MOST_EPISODES, MessageRefused, Refusal, decode_own
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.producers.rollout.intake.owned_partitions import OwnedPartitions
from headrace.producers.rollout.intake.slots import Reservation
from headrace.producers.rollout.intake.started_task import NOT_REFUSED, Gate, StartedTask, TaskVerdict
from headrace.producers.task_ledger import POISON_STARTS
from headrace.schemas.ids import describe_long_fields
from headrace.schemas.records import Task

log = structlog.get_logger()

MOST_WAITING, FEW_WAITING = 64, 16
"""Waiting tasks of one partition: at the first number it is paused, at the second it is resumed."""
REVISION_PATIENCE_S = 30.0
"""Seconds to wait for a task's recipe revision, which may come after the task, or not exist at all."""


def read_task(value: bytes, run_id: str) -> Task:
    """Return the task of a message. Raises MessageRefused for a task that cannot be played."""
    task = decode_own(value, Task, run_id, lambda task: f"the task has run id {task.run_id}, but this run has {run_id}")
    if wrong := list_unusable(task):
        raise MessageRefused("unusable", f"this task cannot be played: {'; '.join(wrong)}")
    return task


def list_unusable(task: Task) -> list[str]:
    """Return the values of a task with which it cannot be played, each with the allowed ones."""
    wrong = []
    if task.number < 0:
        wrong.append(f"number is {task.number}, and must be 0 or more")
    if not 1 <= task.n_asked <= MOST_EPISODES:
        wrong.append(f"n_asked is {task.n_asked}, and must be from 1 to {MOST_EPISODES}")
    return wrong + describe_long_fields(task, ("stream", "task_id", "tier"))


@dataclass(frozen=True, slots=True)
class WaitingTask:
    """A received task that has not started. `task` is None for a dead letter."""

    message: Message
    task: Task | None
    refusal: Refusal
    """Why there is no task; NOT_REFUSED if there is one."""
    since_s: float
    """When it was received, by the intake's clock."""

    @property
    def partition_id(self) -> PartitionId:
        """Partition of the task."""
        return self.message.topic, self.message.partition

    def as_started(
        self, verdict: TaskVerdict, refusal: Refusal = NOT_REFUSED, reservation: Reservation | None = None
    ) -> StartedTask:
        """Return the task as a started task; a dead letter has no task."""
        task = self.task if verdict != "dead" else None
        return StartedTask(self.partition_id, self.message, task, verdict, refusal, reservation)


class TaskQueue:
    """The queue of waiting tasks, without I/O; the caller gives the time.

    Args:
        owned: The owned partitions with their started tasks.
        gate: Decides whether a task may start.
        topics: The topics of tasks.
    """

    def __init__(self, owned: OwnedPartitions, gate: Gate, topics: Collection[str]) -> None:
        self._owned, self._gate, self._topics = owned, gate, topics
        self._waiting: list[WaitingTask] = []
        self._counts: Counter[PartitionId] = Counter()
        self._full: set[PartitionId] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, task: WaitingTask) -> bool:
        """Queue a task; return True if its partition is now full and must be paused."""
        # Dead letters first, then in order of arrival, not by the feeder's clock.
        insort(self._waiting, task, key=lambda waiting: waiting.task is not None)
        self._counts[task.partition_id] += 1
        if self._counts[task.partition_id] < MOST_WAITING or task.partition_id in self._full:
            return False
        self._full.add(task.partition_id)
        return True

    def remove(self, partition_ids: Collection[PartitionId]) -> None:
        """Forget the tasks of lost partitions."""
        self._waiting = [task for task in self._waiting if task.partition_id not in partition_ids]
        for partition_id in partition_ids:
            self._counts.pop(partition_id, None)
            self._full.discard(partition_id)

    def take_drained(self) -> list[PartitionId]:
        """Return, once, the paused partitions that must be resumed."""
        found = [partition_id for partition_id in self._full if self._counts[partition_id] <= FEW_WAITING]
        self._full.difference_update(found)
        return found

    def start(self, now_s: float) -> list[StartedTask]:
        """Start the tasks that may start, in order of arrival.

        If a task may not start, later tasks of its topic do not overtake it. No task at all overtakes a task that waits
        for slots or must run alone: otherwise smaller tasks would take every free slot, and it would wait for ever.
        """
        found: list[StartedTask] = []
        left: list[WaitingTask] = []
        refused: set[str] = set()
        """Topics."""
        for task in self._waiting:
            started = None if task.message.topic in refused else self._try_start(task, refused, now_s)
            if started is None:
                left.append(task)
                continue
            self._counts[task.partition_id] -= 1
            found.append(replace(started, ownership=self._owned.start(task.partition_id, task.message.offset)))
        self._waiting = left
        return found

    def _try_start(self, waiting: WaitingTask, refused: set[str], now_s: float) -> StartedTask | None:
        """Decide on a task; return None if it has to wait."""
        partition_id, offset, task = waiting.partition_id, waiting.message.offset, waiting.task
        if task is None:
            return waiting.as_started("dead", waiting.refusal)
        ledger = self._owned.ledger(partition_id)
        starts, is_suspect = ledger.count_starts(offset), ledger.has_to_run_alone(offset)
        if starts >= POISON_STARTS:
            name = f"{task.stream}:{task.number}"
            why = f"task {name} was started {starts} times, and its worker died each time: look into the workers' logs"
            return waiting.as_started("poison", Refusal("poison", why))
        if self._owned.alone is not None or (is_suspect and self._owned.running):
            refused.update(self._topics)
            return None
        admitted = self._gate.try_admit(task)
        if admitted is None or admitted == "no_slots":
            refused.update([waiting.message.topic] if admitted is None else self._topics)
            return None
        if isinstance(admitted, str):
            return self._reject_or_wait(waiting, task, admitted, now_s)
        if is_suspect:
            self._owned.alone = (partition_id, offset)
            # The task was started several times and never finished; it is played alone.
            log.warning("task.suspect", stream=task.stream, number=task.number, starts=starts)
        return waiting.as_started("play", reservation=admitted)

    def _reject_or_wait(
        self, waiting: WaitingTask, task: Task, verdict: Literal["run_end", "unknown_revision"], now_s: float
    ) -> StartedTask | None:
        if verdict == "run_end":
            return waiting.as_started("run_end", Refusal("run_end", "the run ended before the task began"))
        # A worker that reads a revision late must not conclude its tasks: another worker may have it and play them.
        if now_s - waiting.since_s < REVISION_PATIENCE_S or self._gate.is_written(task.revision):
            return None
        detail = (
            f"the task names recipe revision {task.revision}, but the recipe topic had no such revision "
            f"{REVISION_PATIENCE_S:.0f} s after the task came"
        )
        return waiting.as_started("dead", Refusal(verdict, detail))
