"""Finds out that Kafka has forgotten to write the end of a producer's last commit or abort.

A coordinator answers before it writes the end markers. If its broker dies in between, the starting coordinator may have
no leader for the partitions yet: then it treats them as deleted, and writes no marker (seen with Kafka 4.3: "these
partitions are likely deleted already and hence can be skipped"). Readers of the partitions then wait for ever, unless
the producer commits again on them, or its successor aborts what hangs. Worse, its next commit would also commit what
was aborted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import Connection, KafkaAway, KafkaRefused
from headrace.infra.kafka.cluster_topics import list_partitions
from headrace.infra.kafka.topic_offsets import fetch_end_offsets, fetch_stable_ends
from headrace.infra.kafka.topic_reader import PartitionId

QUIET_S = 20.0
"""Seconds after a commit, without another one, before its end is looked for."""
MISSING_S = 30.0
"""Seconds for which readers must be seen waiting. Every open transaction of others has timed out by then."""
LOOK_EVERY_S, LOOK_AFTER_FAILURE_S = 5.0, 60.0
WAIT_STEP_S = 0.1
"""Seconds between two looks of who waits for the end."""


class LastCommit:
    """The last committed transaction of a producer, until readers have got past one of its records.

    A successor can abort it without tearing it only if it hangs as a whole, and if no other commit has followed. So a
    transaction with consumer offsets, whose end on Kafka's own topic cannot be seen, is never found.

    Args:
        connection: The cluster.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open: dict[PartitionId, int] = {}
        """Partition to the offset of the open transaction's first record there."""
        self._has_consumer_offsets = False
        self._committed: dict[PartitionId, int] = {}
        """The same of the last commit; empty once there is nothing to find."""
        self._newest: dict[PartitionId, int] = {}
        """The same of the last commit on each partition, whatever is known of its end."""
        self._had_only_offsets = False
        """Whether the last commit had consumer offsets, whose end cannot be seen, and no records."""
        self._look_at = 0.0
        self._waits_since: float | None = None
        """When readers were first seen waiting."""

    def begin(self) -> None:
        """Note that a transaction begins."""
        self._open, self._has_consumer_offsets = {}, False

    def note_record(self, topic: str, partition: int, offset: int) -> None:
        """Note a delivered record of the open transaction."""
        first = self._open.get((topic, partition), offset)
        self._open[topic, partition] = min(first, offset)

    def note_consumer_offsets(self) -> None:
        """Note that the open transaction has consumer offsets."""
        self._has_consumer_offsets = True

    def note_commit(self) -> None:
        """Note that the coordinator has answered the commit."""
        self._newest |= self._open
        self._had_only_offsets = self._has_consumer_offsets and not self._open
        self._committed = {} if self._has_consumer_offsets else self._open
        self._open, self._waits_since, self._look_at = {}, None, time.monotonic() + QUIET_S

    def find_hanging(self) -> list[PartitionId]:
        """Return the partitions of the last commit if it hangs on all of them. Most calls look at nothing."""
        if not self._committed or time.monotonic() < self._look_at:
            return []
        try:
            stable = fetch_stable_ends(self._connection, self._committed)
        except HeadraceError:  # the cluster is away, or the topics are gone: others say so
            self._waits_since, self._look_at = None, time.monotonic() + LOOK_AFTER_FAILURE_S
            return []
        now = time.monotonic()
        self._look_at = now + LOOK_EVERY_S
        if any(stable[partition_id] > offset for partition_id, offset in self._committed.items()):
            self._committed = {}
            return []
        self._waits_since = now if self._waits_since is None else self._waits_since
        return sorted(self._committed) if now - self._waits_since >= MISSING_S else []

    def can_hang(self) -> bool:
        """Return whether readers still wait for the end of the last commit on a partition, or nobody knows."""
        if self._had_only_offsets:
            return True
        try:
            stable = fetch_stable_ends(self._connection, self._newest)
        except HeadraceError:
            return True
        return any(self.can_hold_back(partition_id, end) for partition_id, end in stable.items())

    def can_hold_back(self, partition_id: PartitionId, stable: int) -> bool:
        """Return whether the last commit there may be what a partition's readers wait for, at this stable offset."""
        first = self._newest.get(partition_id)
        return first is not None and stable <= first


class LastAbort:
    """The partitions of aborted transactions, until readers have got past what is there.

    Args:
        connection: The cluster.
        last_commit: The last commit of the same producer.
    """

    def __init__(self, connection: Connection, last_commit: LastCommit) -> None:
        self._connection, self._last_commit = connection, last_commit
        self._aborted: dict[PartitionId, int] = {}
        """Partition to the offset of the last aborted record that is known there, else -1."""

    def note_abort(self, newest: Mapping[PartitionId, int]) -> None:
        """Note an aborted transaction.

        Args:
            newest: Partition to the offset of the last delivered record there; -1 if none was reported.
        """
        self._aborted |= {one: max(offset, self._aborted.get(one, -1)) for one, offset in newest.items()}

    def forget(self) -> None:
        """Wait for none of what was noted."""
        self._aborted = {}

    def wait_until_read(self) -> list[PartitionId]:
        """Wait until readers get past what is there now; return partitions on which they do not in `MISSING_S`.

        Where the commit before holds readers back, and no record was aborted, there is no reason to wait: the next
        commit ends that one as committed, but a successor would end it as aborted.

        Raises KafkaAway, also if partitions are not where Kafka lists them yet.
        """
        try:
            return self._wait_until_read()
        except KafkaRefused as error:
            raise KafkaAway(f"looking whether readers get past aborted records: {error}") from error

    def _wait_until_read(self) -> list[PartitionId]:
        known = self._aborted.keys() & set(list_partitions(self._connection, {topic for topic, _ in self._aborted}))
        if not known:
            return []
        ends = fetch_end_offsets(self._connection, known)  # may be too low just after a broker's start
        until = {one: max(ends[one], self._aborted[one] + 1) for one in known}
        give_up_at, left = time.monotonic() + MISSING_S, set(known)
        while True:
            stable = fetch_stable_ends(self._connection, left)
            left = {one for one in left if stable[one] < until[one] and not self._is_commit_before(one, stable[one])}
            if not left:
                self._aborted = {one: offset for one, offset in self._aborted.items() if one not in known}
                return []
            if time.monotonic() >= give_up_at:
                return sorted(left)
            time.sleep(WAIT_STEP_S)

    def _is_commit_before(self, partition_id: PartitionId, stable: int) -> bool:
        return self._aborted[partition_id] < 0 and self._last_commit.can_hold_back(partition_id, stable)
