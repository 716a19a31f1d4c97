"""Whether Kafka has written the ends of a producer's transactions to its partitions.

A coordinator answers a commit or an abort before it writes the end markers. If its broker dies in between, the starting
coordinator may have no leader for the partitions yet: then it treats them as deleted, and writes no marker (seen with
Kafka 4.3: "these partitions are likely deleted already and hence can be skipped"). Readers of the partitions then wait
for ever. A later commit of the same transactional id ends such a transaction as committed, a later abort as aborted.
"""

from __future__ import annotations

import time
from typing import NoReturn

import structlog

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import Connection, Outgoing, fetch_end_offsets, fetch_stable_ends
from headrace.infra.process.signals import MustRestart

log = structlog.get_logger()

PartitionId = tuple[str, int]

QUIET_S = 20.0
"""Seconds after the last transaction on a partition before its end is looked for. The next commit would be an end."""
MISSING_S = 30.0
"""Seconds after which an end counts as missing. Every other open transaction has timed out by then."""
LOOK_EVERY_S = 5.0
PROOF_TURN_S = 0.05


class EndMarkers:
    """The partitions of a producer's transactions whose ends were not seen yet.

    Args:
        connection: The cluster.
        transactional_id: The producer's, for messages.
    """

    def __init__(self, connection: Connection, transactional_id: str) -> None:
        self._connection, self._transactional_id = connection, transactional_id
        self._written: set[PartitionId] = set()
        """Partitions of the open transaction; after an abort those of the aborted one."""
        self._ended_at: dict[PartitionId, float] = {}
        """Partition to the time of its last commit."""
        self._ends: dict[PartitionId, int] = {}
        """Partition to the end that readers must reach, as of the first look."""
        self._look_at = 0.0

    def note_record(self, record: Outgoing, delivered_to: int = -1) -> None:
        """Note the partition of a record of the open transaction: the record names it, or else its delivery."""
        partition = delivered_to if record.partition < 0 else record.partition
        if partition >= 0:
            self._written.add((record.topic, partition))

    def note_commit(self) -> None:
        """Note that the coordinator has answered the commit."""
        now = time.monotonic()
        for partition_id in self._written:
            self._ended_at[partition_id] = now
            self._ends.pop(partition_id, None)
        self._written.clear()

    def forget_aborted(self) -> None:
        """Let the next transaction begin whatever becomes of the aborted one."""
        self._written.clear()

    def await_aborted(self) -> None:
        """Wait until an aborted transaction has its end, because the next commit would commit it.

        Raises MustRestart if it does not come, and KafkaAway.
        """
        wanted, end = list(self._written), time.monotonic() + MISSING_S
        for partition_id in wanted:
            self._ends.pop(partition_id, None)
        while self._find_held_back(wanted):
            if time.monotonic() > end:
                self._refuse(wanted)
            time.sleep(PROOF_TURN_S)
        self._written.clear()

    def refuse_missing(self) -> None:
        """Look now and then whether the committed transactions have their ends. Raises MustRestart if one has none."""
        now = time.monotonic()
        quiet = [one for one, ended_at in self._ended_at.items() if now - ended_at >= QUIET_S]
        if not quiet or now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        try:
            held = self._find_held_back(quiet)
        except HeadraceError:  # the cluster is away, or the topics are gone: others say so
            return
        if missing := [one for one in held if now - self._ended_at[one] >= QUIET_S + MISSING_S]:
            self._refuse(missing)

    def _find_held_back(self, partition_ids: list[PartitionId]) -> list[PartitionId]:
        """Return those of the partitions that hold readers back; forget the others."""
        if not partition_ids:
            return []
        if new := [one for one in partition_ids if one not in self._ends]:
            self._ends |= fetch_end_offsets(self._connection, new)
        stable = fetch_stable_ends(self._connection, partition_ids)
        held = [one for one in partition_ids if stable[one] < self._ends[one]]
        for one in set(partition_ids) - set(held):
            self._ended_at.pop(one, None)
            self._ends.pop(one, None)
        return held

    def _refuse(self, partition_ids: list[PartitionId]) -> NoReturn:
        where = ", ".join(f"{topic}[{partition}]" for topic, partition in sorted(partition_ids))
        log.warning("transaction.endless", transactional_id=self._transactional_id, partitions=where)
        raise MustRestart(
            f"Kafka has not written the end of a transaction to {where}, so readers wait: the component starts again, "
            "ends the transaction as aborted, and continues from what can be read"
        )
