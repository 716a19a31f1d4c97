"""Refuses to write on after a commit or abort that Kafka has forgotten to end."""

from __future__ import annotations

from typing import NoReturn

import structlog

from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.clients import Connection
from headrace.infra.kafka.last_commit import LastAbort, LastCommit
from headrace.infra.kafka.topic_reader import PartitionId, name_partition
from headrace.infra.process.signals import MustRestart

log = structlog.get_logger()


class EndlessCommit(HeadraceError):
    """Kafka has not written the end of a command's last commit, so nobody can read it.

    Args:
        where: Partitions, for the message.
        is_whole: Whether nobody can read any of it, so that it may be aborted.
    """

    def __init__(self, where: str, *, is_whole: bool) -> None:
        self.is_whole = is_whole
        cure = (
            "the transaction was ended as aborted, so readers go on. Give the same command again: it writes once more "
            "what was aborted"
            if is_whole
            else "readers there wait, but can read its other records. End the transaction with Kafka's "
            "kafka-transactions.sh (find-hanging, then abort), and look what is missing"
        )
        super().__init__(f"Kafka has not written the end of the last commit to {where}: {cure}")


class TransactionEnds:
    """The ends of a producer's transactions; its successor aborts those that Kafka has forgotten.

    Args:
        connection: The cluster.
        transactional_id: The producer's, for the log.
        waits_for_readers: Whether to wait before each transaction until readers get past the commit before.
    """

    def __init__(self, connection: Connection, transactional_id: str, *, waits_for_readers: bool) -> None:
        self._transactional_id, self._waits_for_readers = transactional_id, waits_for_readers
        self._last_commit = LastCommit(connection)
        self._last_abort = LastAbort(connection, self._last_commit)
        self._touched: dict[PartitionId, bool] = {}
        """Partitions on which the open transaction may have records, and whether one was delivered."""
        self._refusal = ""
        """Why nothing more may be written."""

    def begin(self) -> None:
        """Note that a transaction begins; wait until readers get past what was aborted before.

        Raises MustRestart if Kafka never ended a commit or abort: the next commit would also commit what was aborted.
        If it waits for readers, it raises as `wait_until_read`, too.
        """
        if self._refusal:
            raise MustRestart(self._refusal)
        if self._waits_for_readers:
            self.wait_until_read()
        if hanging := self._last_abort.wait_until_read():
            self._refuse_all("abort", hanging)
        self._last_commit.begin()
        self._touched = {}

    def note_record(self, partition_id: PartitionId) -> None:
        """Note a record of the open transaction that may have been written, although nothing says so."""
        self._touched.setdefault(partition_id, False)

    def note_delivery(self, partition_id: PartitionId, offset: int) -> None:
        """Note a delivered record of the open transaction."""
        self._touched[partition_id] = True
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

    def wait_until_read(self) -> None:
        """Wait until readers get past the last commit.

        Raises EndlessCommit if Kafka never ended it, KafkaAway if it is not known, and KafkaRefused.
        """
        if hanging := self._last_commit.wait_until_read():
            raise EndlessCommit(self._log_endless(hanging), is_whole=self._last_commit.is_whole(hanging))

    def _refuse_all(self, what: str, hanging: list[PartitionId]) -> NoReturn:
        where = self._log_endless(hanging)
        self._refusal = (
            f"Kafka has not written the end of the last {what} to {where}, so readers wait: the component starts "
            "again, ends the transaction as aborted, and continues from what can be read"
        )
        raise MustRestart(self._refusal)

    def _log_endless(self, hanging: list[PartitionId]) -> str:
        where = ", ".join(map(name_partition, hanging))
        log.warning("transaction.endless", transactional_id=self._transactional_id, partitions=where)
        return where
