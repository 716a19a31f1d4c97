"""Finds out that Kafka has forgotten to write the end of a producer's last commit or abort.

A coordinator answers before it writes the end markers. If its broker dies in between, the starting coordinator may have
no leader for the partitions yet: then it treats them as deleted, and writes no marker (seen with Kafka 4.3: "these
partitions are likely deleted already and hence can be skipped"). Readers of the partitions then wait for ever, unless
the producer commits again on them, or its successor aborts what hangs. Worse, its next commit would also commit what
was aborted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import Connection, fetch_end_offsets, fetch_stable_ends
from headrace.infra.kafka.cluster_topics import find_held_back
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
        if self._is_read_in_part(stable):
            self._committed = {}
            return []
        self._waits_since = now if self._waits_since is None else self._waits_since
        return sorted(self._committed) if now - self._waits_since >= MISSING_S else []

    def wait_until_read(self) -> list[PartitionId]:
        """Wait until readers get past the last commit; return its partitions if it hangs on all of them.

        Nothing is waited for while the cluster is away: it has answered the commit.
        """
        give_up_at = time.monotonic() + MISSING_S
        while self._committed:
            try:
                stable = fetch_stable_ends(self._connection, self._committed)
            except HeadraceError:
                break
            if self._is_read_in_part(stable):
                break
            if time.monotonic() >= give_up_at:
                return sorted(self._committed)
            time.sleep(WAIT_STEP_S)
        self._committed = {}
        return []

    def _is_read_in_part(self, stable: Mapping[PartitionId, int]) -> bool:
        return any(stable[partition_id] > offset for partition_id, offset in self._committed.items())


class LastAbort:
    """The partitions of aborted transactions, until readers have got past what is there.

    Args:
        connection: The cluster.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._aborted: set[PartitionId] = set()

    def note_abort(self, partition_ids: Iterable[PartitionId]) -> None:
        """Note the partitions of an aborted transaction, also those of records that were not delivered."""
        self._aborted |= set(partition_ids)

    def forget(self) -> None:
        """Wait for none of what was noted."""
        self._aborted = set()

    def wait_until_read(self) -> list[PartitionId]:
        """Wait until readers get past what is there now; return partitions on which they do not in `MISSING_S`.

        Raises KafkaAway and KafkaRefused.
        """
        if not self._aborted:
            return []
        held_back = self._aborted.intersection(find_held_back(self._connection, {topic for topic, _ in self._aborted}))
        ends = fetch_end_offsets(self._connection, held_back) if held_back else {}
        give_up_at = time.monotonic() + MISSING_S
        while held_back:
            stable = fetch_stable_ends(self._connection, held_back)
            held_back = {partition_id for partition_id in held_back if stable[partition_id] < ends[partition_id]}
            if time.monotonic() >= give_up_at:
                return sorted(held_back)
            time.sleep(WAIT_STEP_S)
        self._aborted = set()
        return []
