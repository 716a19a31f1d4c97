"""Which of the tasks that a worker was given may start."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Literal

import pytest

from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.decoding import MOST_EPISODES
from headrace.producers.rollout.intake.owned_partitions import OwnedPartitions
from headrace.producers.rollout.intake.slots import Reservation, Slots
from headrace.producers.rollout.intake.started_task import NOT_REFUSED, StartedTask
from headrace.producers.rollout.intake.task_queue import REVISION_PATIENCE_S, TaskQueue, WaitingTask, list_unusable
from headrace.schemas.ids import LONGEST_NAME
from headrace.schemas.records import Task

PARTITION_ID = ("run.tasks.sums", 0)


class Behind:
    """A gate of a worker that has read no revision but the first."""

    def __init__(self, *written: int) -> None:
        self.written = written

    def try_admit(self, task: Task) -> str:  # type: ignore[explicit-override]  # it has slots for none
        return "unknown_revision"

    def is_written(self, revision: int) -> bool:
        return revision in self.written


def queue_of(gate: Behind) -> TaskQueue:
    owned = OwnedPartitions("run-1")
    owned.own(PARTITION_ID, 0, "")
    queue = TaskQueue(owned, gate, [PARTITION_ID[0]])  # type: ignore[arg-type]  # a gate that only refuses
    task = Task(run_id="run-1", stream="sums", revision=7)
    message = Message(*PARTITION_ID, 0, b"sums:0", b"")
    owned.receive(message)
    queue.add(WaitingTask(message, task, NOT_REFUSED, 0.0))
    return queue


def test_a_task_waits_for_a_revision_that_is_written_however_slow_its_worker_is() -> None:
    assert queue_of(Behind(7)).start(100 * REVISION_PATIENCE_S) == []


def test_a_task_of_a_revision_that_is_not_written_is_dead_after_a_while() -> None:
    queue = queue_of(Behind())
    assert queue.start(REVISION_PATIENCE_S / 2) == []
    (started,) = queue.start(REVISION_PATIENCE_S)
    assert (started.verdict, started.refusal.reason) == ("dead", "unknown_revision")


def test_what_makes_a_task_unplayable_is_named_and_nothing_else() -> None:
    good = Task(run_id="run-1", stream="sums", n_asked=4, task_id="1 + 1")
    assert list_unusable(good) == []
    assert list_unusable(replace(good, n_asked=0)) == [f"n_asked is 0, and must be from 1 to {MOST_EPISODES}"]
    assert list_unusable(replace(good, number=-1, tier="t" * (LONGEST_NAME + 1))) == [
        "number is -1, and must be 0 or more",
        f"tier has {LONGEST_NAME + 1} characters, and may have at most {LONGEST_NAME}",
    ]


class Busy:
    """A worker's slots and its queue, in which tasks for training always wait; episodes end one by one, in turn."""

    def __init__(self, concurrency: int, group_size: int) -> None:
        self.slots, self.group_size, self.offset = Slots(concurrency), group_size, 0
        self.owned = OwnedPartitions("run-1")
        self.owned.own(("train", 0), 0, "")
        self.owned.own(("eval", 0), 0, "")
        self.queue = TaskQueue(self.owned, self, ("train", "eval"))
        self.episodes: deque[StartedTask] = deque()
        self.turn()

    def try_admit(self, task: Task) -> Reservation | Literal["no_slots"]:
        return self.slots.reserve(task.n_asked) or "no_slots"

    def is_written(self, revision: int) -> bool:
        raise AssertionError(revision)

    def add(self, topic: str, n_asked: int) -> None:
        self.offset += 1
        message = Message(topic, 0, self.offset, b"", b"")
        self.owned.receive(message)
        task = Task(run_id="run-1", stream=topic, number=self.offset, n_asked=n_asked)
        self.queue.add(WaitingTask(message, task, NOT_REFUSED, 0.0))

    def turn(self) -> list[str]:
        """End an episode and start what may; return the topics of that."""
        if self.episodes:
            ended = self.episodes.popleft()
            assert ended.reservation is not None
            ended.reservation.note_ended()
        while len(self.queue) < 2 * self.slots.total:
            self.add("train", self.group_size)
        found = self.queue.start(0.0)
        for each in found:
            assert each.task is not None
            self.episodes.extend([each] * each.task.n_asked)
        return [each.message.topic for each in found]


@pytest.mark.parametrize("samples", [3, 5, 8, 9, 32])
def test_an_evaluation_of_more_samples_than_a_group_has_starts_while_tasks_for_training_wait(samples: int) -> None:
    busy = Busy(concurrency=8, group_size=2)
    before = len(busy.queue)
    busy.add("eval", samples)
    turns = 0
    while "eval" not in busy.turn():
        turns += 1
        assert turns <= 2 * before + samples
        assert busy.slots.taken >= busy.slots.total / 2, "a task that waits leaves more than half of the slots idle"
