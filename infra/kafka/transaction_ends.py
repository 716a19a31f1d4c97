"""Refuses to write on after a commit or abort that Kafka has forgotten to end."""

from __future__ import annotations

from typing import NoReturn

import structlog

from headrace.infra.kafka.clients import Connection
from headrace.infra.kafka.last_commit import LastAbort, LastCommit
from headrace.infra.kafka.topic_reader import PartitionId, name_partition
from headrace.infra.process.signals import MustRestart

log = structlog.get_logger()


class TransactionEnds:
    """The ends of a producer's transactions; its successor aborts those that Kafka has forgotten.

    Args:
        connection: The cluster.
        transactional_id: The producer's, for the log.
    """

    def __init__(self, connection: Connection, transactional_id: str) -> None:
        self._transactional_id = transactional_id
        self._last_commit = LastCommit(connection)
        self._last_abort = LastAbort(connection, self._last_commit)
        self._touched: dict[PartitionId, int] = {}
        """Partitions on which the open transaction may have records, to the offset of the last delivered one or -1."""
        self._refusal = ""
        """Why nothing more may be written."""

    def begin(self) -> None:
        """Note that a transaction begins; wait until readers get past what was aborted before.

        Raises MustRestart if Kafka never ended a commit or abort: the next commit would also commit what was aborted.
        """
        if self._refusal:
            raise MustRestart(self._refusal)
        if hanging := self._last_abort.wait_until_read():
            self._refuse_all("abort", hanging)
        self._last_commit.begin()
        self._touched = {}

    def note_record(self, partition_id: PartitionId) -> None:
        """Note a record of the open transaction that may have been written, although nothing says so."""
        self._touched.setdefault(partition_id, -1)

    def note_delivery(self, partition_id: PartitionId, offset: int) -> None:
        """Note a delivered record of the open transaction."""
        self._touched[partition_id] = max(offset, self._touched.get(partition_id, -1))
        self._last_commit.note_record(*partition_id, offset)

    def note_consumer_offsets(self) -> None:
        """Note that the open transaction has consumer offsets."""
        self._last_commit.note_consumer_offsets()

    def note_commit(self) -> None:
        """Note that the coordinator has answered the commit."""
        self._last_commit.note_commit()

    def note_abort(self) -> None:
        """Note that the coordinator has answered the abort."""
        self._last_abort.note_abort(self._touched)

    def can_abort_safely(self) -> bool:
        """Return whether an abort now would reach the coordinator, and end nothing but the open transaction.

        Without records an abort is the client's own affair; and a commit whose end Kafka forgot would end as aborted.
        """
        return bool(self._touched) and not self._last_commit.can_hang()

    def forget_aborts(self) -> None:
        """Do not wait for the end of what was aborted."""
        self._last_abort.forget()

    def refuse_hanging_commit(self) -> None:
        """Look now and then whether readers get past the last commit. Raises MustRestart if Kafka never ended it.

        This producer must write nothing more then: its next commit would end a part of the transaction as committed,
        and its successor aborts the rest. Nobody has read any of it, so it is made again from what is committed.
        """
        if hanging := self._last_commit.find_hanging():
            self._refuse_all("commit", hanging)

    def _refuse_all(self, what: str, hanging: list[PartitionId]) -> NoReturn:
        where = ", ".join(map(name_partition, hanging))
        # Kafka has not written the end of the last commit, so readers wait. The process starts again and aborts it.
        log.warning("transaction.endless", transactional_id=self._transactional_id, partitions=where)
        self._refusal = (
            f"Kafka has not written the end of the last {what} to {where}, so readers wait: the component starts "
            "again, ends the transaction as aborted, and continues from what can be read"
        )
        raise MustRestart(self._refusal)
