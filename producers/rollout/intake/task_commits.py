"""The commits of a worker's tasks, which never block the thread that polls.

A call that waits for the answer to a commit must not be made in that thread: after a freeze of the broker the member
has lost its partitions, the client hands the answer over only after the rebalance, and the rebalance needs the next
poll (seen with librdkafka 2.16: the call never returned). So commits are sent without waiting, and their answers come
in a later poll.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.infra.failpoints import reach
from headrace.infra.kafka.call_watch import WatchedCall
from headrace.infra.kafka.clients import AWAY_ERRORS, translate_error
from headrace.infra.kafka.group_offsets import MEMBERSHIP_MOVES
from headrace.infra.kafka.topic_reader import PartitionId, name_partition
from headrace.infra.kafka.watched_consumer import CALLS, WatchedConsumer
from headrace.producers.rollout.intake.owned_partitions import OwnedPartitions
from headrace.producers.rollout.intake.started_task import StartedTask
from headrace.producers.rollout.pauses import COMMIT, Pauses

log = structlog.get_logger()

COMMIT_EVERY_S = 0.15
SLOW_ANSWER_S = 5.0
"""Seconds without an answer after which the worker's status names the commit."""


@dataclass(slots=True)
class _Commit:
    """A commit that Kafka has not answered."""

    positions: frozenset[tuple[str, int, int]]
    """Topic, partition and offset: the answer names the same."""
    watched: WatchedCall
    since_s: float
    starting: list[StartedTask]
    """Tasks that may run once Kafka has accepted the commit."""
    is_last: bool
    """Whether the worker gives the partitions up."""

    @property
    def partition_ids(self) -> frozenset[PartitionId]:
        return frozenset((topic, partition) for topic, partition, _ in self.positions)


class TaskCommits:
    """Sends the commits of one worker and takes their answers. Only the thread that polls may use it.

    Args:
        group: Consumer group, for errors.
        owned: The partitions to commit.
        pauses: Where waits are reported.
    """

    def __init__(self, group: str, owned: OwnedPartitions, pauses: Pauses) -> None:
        self._group, self._owned, self._pauses = group, owned, pauses
        self._sent: list[_Commit] = []
        """Commits without an answer, the oldest first."""
        self._starting: list[StartedTask] = []
        """Tasks whose start is in no commit yet."""
        self._started: list[StartedTask] = []
        """Tasks whose start is committed."""
        self._due_s = 0.0
        self._refusal: KafkaException | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a commit is sent and not answered."""
        return bool(self._sent)

    @property
    def unanswered(self) -> frozenset[PartitionId]:
        """Partitions whose last commit Kafka has not answered."""
        return frozenset(one for commit in self._sent if commit.is_last for one in commit.partition_ids)

    def add_starting(self, starting: Iterable[StartedTask]) -> None:
        """Add tasks that start once that is committed."""
        self._starting += starting

    def take_started(self) -> list[StartedTask]:
        """Return the tasks whose start has been committed since the last call."""
        started, self._started = self._started, []
        return started

    def send_due(self, consumer: WatchedConsumer, now_s: float, *, is_in_doubt: bool) -> None:
        """Send what has changed, one commit at a time: new starts at once, ends every 150 ms.

        Args:
            consumer: The member of the group.
            now_s: Of the monotonic clock.
            is_in_doubt: Whether the client has perhaps lost its brokers, and would take the commit without sending it.

        Raises:
            KafkaRefused: Kafka refused an earlier commit for good.
        """
        if self._refusal is not None:
            raise translate_error(self._refusal, f"committing for group {self._group}") from self._refusal
        if self._sent:
            if now_s - self._sent[0].since_s > SLOW_ANSWER_S:
                self._pauses.begin(COMMIT, f"no answer from Kafka for {now_s - self._sent[0].since_s:.0f} s")
            return
        changed = self._owned.list_changed()
        if not changed or is_in_doubt or not (self._starting or now_s >= self._due_s):
            return
        reach("rollout.committing")
        starting, self._starting = self._starting, []
        self._owned.note_sent(changed)
        self._send(consumer, changed, starting)

    def send_last(self, consumer: WatchedConsumer, partition_ids: Collection[PartitionId]) -> None:
        """Commit partitions that the worker gives up.

        The client tells Kafka that it gave up the partitions only after the answer, so the next owner sees the commit.
        """
        if partition_ids:
            self._send(consumer, partition_ids, [], is_last=True)

    def close(self) -> None:
        """Watch no commit any more, because the client that sent them is gone, and nobody waits for its answers."""
        for commit in self._sent:
            CALLS.end(commit.watched)

    def forget(self, partition_ids: Collection[PartitionId]) -> None:
        """Forget tasks of lost partitions that have not begun."""
        lists = (self._starting, self._started, *(commit.starting for commit in self._sent))
        for tasks in lists:
            for started in tasks:
                if started.partition_id in partition_ids:
                    started.release_slots()
            tasks[:] = [started for started in tasks if started.partition_id not in partition_ids]

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Take an answer; called in a poll."""
        positions = frozenset((tp.topic, tp.partition, tp.offset) for tp in partitions)
        commit = next((commit for commit in self._sent if commit.positions == positions), None)
        if commit is not None:
            self._end(commit, error or next((tp.error for tp in partitions if tp.error is not None), None))

    def _send(
        self,
        consumer: WatchedConsumer,
        partition_ids: Collection[PartitionId],
        starting: list[StartedTask],
        *,
        is_last: bool = False,
    ) -> None:
        offsets = [TopicPartition(*commit) for commit in self._owned.list_commits(partition_ids)]
        positions = frozenset((tp.topic, tp.partition, tp.offset) for tp in offsets)
        watched = CALLS.begin(f"committing for group {self._group}", consumer.has_to_wait)
        commit = _Commit(positions, watched, time.monotonic(), starting, is_last)
        self._sent.append(commit)
        try:
            consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._end(commit, error.args[0])

    def _end(self, commit: _Commit, error: KafkaError | None) -> None:
        """Take in that a commit was answered, or could not be sent."""
        self._sent.remove(commit)
        CALLS.end(commit.watched)
        if commit.is_last:
            if error is not None:
                report_lost_commit(error.str(), commit.partition_ids)
            return
        if error is None:
            reach("rollout.committed")
            self._started += commit.starting
            self._due_s = time.monotonic() + COMMIT_EVERY_S
            self._pauses.end(COMMIT)
            return
        self._owned.note_refused(commit.partition_ids)
        self._starting = commit.starting + self._starting
        if error.retriable() or error.code() in AWAY_ERRORS or error.code() in MEMBERSHIP_MOVES:
            self._pauses.begin(COMMIT, f"Kafka did not accept it ({error.str()})")
        else:
            self._refusal = KafkaException(error)


def report_lost_commit(why: str, partition_ids: Iterable[PartitionId]) -> None:
    """Log that the last commit of partitions may be lost: their open tasks are played again."""
    # Offsets of partitions that the worker gives up were not committed; tasks may be played again, never trained twice.
    log.warning("commit.lost", why=why, partitions=[name_partition(one) for one in sorted(partition_ids)])
