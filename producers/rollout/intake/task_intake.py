"""A worker's membership in the consumer group of its workflow: it reads and commits the assigned partitions.

One thread owns the consumer, the ledgers and the queue; no other thread touches them. Other threads report finished
tasks by `report_done`, and get tasks and revocations by two callbacks. The thread never stops polling, so the worker
stays a member while episodes run. Tasks that cannot start yet wait in the queue, and a partition with many waiting
tasks is paused.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from headrace.infra.kafka.broker_contact import BrokerContact
from headrace.infra.kafka.clients import Connection, Message, call_patiently, open_consumer
from headrace.infra.kafka.decoding import MessageRefused
from headrace.infra.kafka.group_offsets import read_metadata, refuse_errors
from headrace.infra.kafka.received import take_good_messages
from headrace.infra.kafka.topic_reader import PartitionId, name_partition
from headrace.infra.stopwatch import Stopwatch
from headrace.producers.rollout.intake.owned_partitions import OwnedPartitions
from headrace.producers.rollout.intake.started_task import NOT_REFUSED, Gate, StartedTask
from headrace.producers.rollout.intake.task_commits import TaskCommits, report_lost_commit
from headrace.producers.rollout.intake.task_queue import TaskQueue, WaitingTask, read_task
from headrace.producers.rollout.pauses import Pauses
from headrace.schemas.records import Task

log = structlog.get_logger()

MOST_TASK_RECORDS = 64
INTAKE_TURN_S = 0.02
ANSWER_TURN_S = 0.002
"""Longest poll while a commit has no answer yet, because tasks wait for it."""
INTAKE_PATIENCE_S = 30.0
LEAVE_S = 2.0
"""Most seconds for the last commit and for leaving the group, as the broker may be dead."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Identity and topics of an intake."""

    connection: Connection
    name: str
    """Client id."""
    group: str
    topics: tuple[str, ...]
    run_id: str


class TaskIntake(threading.Thread):
    """The poll thread.

    Args:
        member: Its identity and topics.
        gate: Decides which tasks may start.
        on_start: Called with every started task, in this thread.
        on_revoke: Called with lost partitions after their commit was sent; it must cancel their episodes.
        pauses: Where waits are reported.
    """

    def __init__(
        self,
        member: Subscription,
        gate: Gate,
        on_start: Callable[[StartedTask], object],
        on_revoke: Callable[[frozenset[PartitionId]], object],
        pauses: Pauses,
    ) -> None:
        super().__init__(name="task-intake", daemon=True)
        self.watch = Stopwatch()
        self.error: BaseException | None = None
        """The error that ended this thread; None if `stop` ended it."""
        self.owned = OwnedPartitions(member.run_id, member.name)
        self.queue = TaskQueue(self.owned, gate, member.topics)
        self._member = member
        self._on_start, self._after_revoke = on_start, on_revoke
        self._done: deque[StartedTask] = deque()
        self._commits = TaskCommits(member.group, self.owned, pauses)
        self._in_good_order = True
        self._drains, self._over = threading.Event(), threading.Event()
        # The default assignor, uniform, balances the sum over all topics: two workers would get one topic each.
        self._consumer = open_consumer(
            member.connection,
            member.name,
            member.group,
            on_commit=self._commits.on_commit,
            group_remote_assignor="range",
        )
        self._contact = BrokerContact(self._consumer, member.connection, member.topics[0])

    # ------------------------------------------------------------------------------------------ the other threads

    @property
    def partitions(self) -> int:
        """Number of assigned partitions."""
        return len(self.owned)

    def report_done(self, started: StartedTask) -> None:
        """Report that all records of a task are acknowledged."""
        self._done.append(started)

    def drain(self) -> None:
        """Start nothing more."""
        self._drains.set()

    def stop(self, *, in_good_order: bool = True) -> None:
        """Commit, leave the group, end the thread. If not in good order, the starts of running tasks stay counted."""
        self._in_good_order = in_good_order
        self._over.set()
        self.join(LEAVE_S)
        unanswered = {*self.owned, *self._commits.unanswered}
        if self.is_alive() and unanswered:
            report_lost_commit(f"no answer from Kafka within {LEAVE_S:.0f} s", unanswered)

    # --------------------------------------------------------------------------------------------- the own thread

    def run(self) -> None:
        """Take turns until `stop`."""
        try:
            callbacks = {"on_assign": self._on_assign, "on_revoke": self._on_revoke, "on_lost": self._on_lost}
            self._consumer.subscribe(list(self._member.topics), **callbacks)
            while not self._over.is_set():
                self.turn()
            self._commit_last(self.owned)  # now, as `close` first answers rebalances that wait
            self._consumer.close()
        except BaseException as error:  # noqa: BLE001 - the worker's main thread raises it
            self.error = error
        finally:
            self._commits.close()

    def turn(self) -> None:
        """Take one turn.

        1. poll: read records; rebalances happen here, and new partitions are restored.
        2. done: mark acknowledged tasks in the ledgers.
        3. start: start tasks that the gate admits; a task that one more death would make poison runs alone.
        4. commit: new starts before they run, ends every 150 ms; the answer comes in a later poll.
        5. hand over: pass on the tasks whose start is committed.
        """
        self._poll()  # 1
        self._take_done()  # 2
        if not self._drains.is_set():
            self._start()  # 3
        with self.watch.measure("commit"):
            self._commits.send_due(self._consumer, time.monotonic(), is_in_doubt=self._contact.is_in_doubt)  # 4
        for started in self._commits.take_started():
            self._on_start(started)  # 5

    # ------------------------------------------------------------------------------------------------- rebalances

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Restore the ledgers; they give the offset to read from, as the group's offset may be of another run."""
        is_leaving = self._over.is_set()  # then the client does not answer, and reads nothing
        positions = self._restore(partitions) if partitions and not is_leaving else partitions
        consumer.incremental_assign(positions)
        consumer.resume(partitions)  # we may have paused them in an earlier ownership
        if partitions:
            log.info("partitions.assigned", partitions=_name_all(_partitions_of(partitions)))

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Commit done tasks, take back the starts of open tasks, and forget the partitions."""
        partition_ids = _partitions_of(partitions)
        self._commit_last([partition_id for partition_id in partition_ids if partition_id in self.owned])
        self._forget(consumer, partition_ids)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget the partitions: it is too late for a commit."""
        self._forget(consumer, _partitions_of(partitions))

    def _commit_last(self, partition_ids: Iterable[PartitionId]) -> None:
        """Commit for the last time, without waiting, as the broker may be dead."""
        self._take_done()
        leaving = list(partition_ids)
        if self._in_good_order:
            self.owned.reset_starts(leaving)
        self._commits.send_last(self._consumer, leaving)

    def _forget(self, consumer: Consumer, partition_ids: frozenset[PartitionId]) -> None:
        consumer.incremental_unassign([TopicPartition(*partition_id) for partition_id in partition_ids])
        self.owned.disown(partition_ids)
        self.queue.remove(partition_ids)
        self._commits.forget(partition_ids)
        log.info("partitions.revoked", partitions=_name_all(partition_ids))
        self._after_revoke(partition_ids)

    def _restore(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Restore the ledgers; return the offset to read each partition from."""
        asked = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        found: list[TopicPartition] = call_patiently(
            lambda: refuse_errors(self._consumer.committed(asked, timeout=10)),
            f"asking for the offsets of group {self._member.group}",
            INTAKE_PATIENCE_S,
        )
        positions = []
        for tp in found:
            position = self.owned.own((tp.topic, tp.partition), tp.offset, read_metadata(tp))
            if position < tp.offset:
                # The offset is of another run of the same name, and is not used.
                log.warning("commit.other_run", partition=f"{tp.topic}[{tp.partition}]", offset=tp.offset)
            positions.append(TopicPartition(tp.topic, tp.partition, position or OFFSET_BEGINNING))
        return positions

    # ------------------------------------------------------------------------------------------ the steps of a turn

    def _poll(self) -> None:
        with self.watch.measure("consume"):
            raw = self._consumer.consume(MOST_TASK_RECORDS, 0)
        if not raw:
            with self.watch.measure("wait"):
                one = self._consumer.poll(ANSWER_TURN_S if self._commits.is_waiting else INTAKE_TURN_S)
            raw = [one] if one is not None else []
        doing = f"reading {', '.join(self._member.topics)}"
        self._contact.refuse_loss(is_answered=bool(raw), doing=doing)
        for message in take_good_messages(raw, doing):
            if self.owned.receive(message):
                self._receive(message)

    def _receive(self, message: Message) -> None:
        task: Task | None = None
        refusal = NOT_REFUSED
        with self.watch.measure("decode"):
            try:
                task = read_task(message.value, self._member.run_id)
            except MessageRefused as refused:
                refusal = refused.refusal
        if self.queue.add(WaitingTask(message, task, refusal, time.monotonic())):
            self._consumer.pause([TopicPartition(message.topic, message.partition)])

    def _take_done(self) -> None:
        while self._done:
            self.owned.mark_done(self._done.popleft())

    def _start(self) -> None:
        self._commits.add_starting(self.queue.start(time.monotonic()))
        for partition_id in self.queue.take_drained():
            self._consumer.resume([TopicPartition(*partition_id)])


def _partitions_of(partitions: Iterable[TopicPartition]) -> frozenset[PartitionId]:
    return frozenset((tp.topic, tp.partition) for tp in partitions)


def _name_all(partition_ids: Iterable[PartitionId]) -> list[str]:
    return [name_partition(one) for one in sorted(partition_ids)]
