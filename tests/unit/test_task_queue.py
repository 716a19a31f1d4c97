"""Which of the tasks that a worker was given may start."""

from __future__ import annotations

from headrace.infra.kafka.clients import Message
from headrace.producers.rollout.owned_partitions import OwnedPartitions
from headrace.producers.rollout.started_task import NOT_REFUSED
from headrace.producers.rollout.task_queue import REVISION_PATIENCE_S, TaskQueue, WaitingTask
from headrace.schemas.records import Task

PARTITION_ID = ("run.tasks.sums", 0)


class Behind:
    """A gate of a worker that has read no revision but the first."""

    def __init__(self, *written: int) -> None:
        self.written = written

    def admit(self, task: Task) -> str:  # type: ignore[explicit-override]  # it has slots for none
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
