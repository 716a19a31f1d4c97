"""One transactional producer: begin, produce, flush, send offsets, commit."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as RawMessage

from headrace.infra.errors import HeadraceError, Unavailable
from headrace.infra.failpoints import reach
from headrace.infra.kafka.clients import (
    AWAY,
    TRANSACTION_TIMEOUT_MS,
    Connection,
    Fenced,
    Outgoing,
    Overdue,
    held_back,
    open_transactional_producer,
    translate,
)
from headrace.infra.process.signals import MustRestart

log = structlog.get_logger()

CALL_S = 5.0
"""How long one call to the coordinator waits before it is asked again."""
STUCK_S = 12.0
"""A call that has not returned after so long never will."""
STUCK_EXIT = os.EX_TEMPFAIL
"""The supervisor takes it for no failure."""
LOST = {KafkaError.INVALID_TXN_STATE, KafkaError._STATE}  # noqa: SLF001
"""Client and broker disagree on the transaction, as after a black hole that swallowed the broker's answers."""


class Aborted(Unavailable):
    """The transaction was aborted: nothing of it happened, and memory that ran ahead of it must be rebuilt."""


@dataclass(slots=True)
class Ticket:
    """A produced record; its offset is known after the flush."""

    offset: int = -1


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """How far a consumer group is, as one of its members commits it."""

    positions: list[TopicPartition]
    """Next offsets, with the metadata that a restore reads."""
    member: Any
    """The group's metadata, of the poll that returned the records: the broker refuses those of an older epoch."""


class TransactionalWriter:
    """Writes records and consumer offsets all at once or not at all (KIP-98, KIP-447).

    Every method raises Aborted when nothing of the transaction happened, MustRestart when this producer can write no
    more, and Fenced when another process has taken over the transactional id. A commit is asked for until its outcome
    is known.

    Args:
        connection: The cluster.
        transactional_id: Whoever held it before is fenced, and its open transaction aborted.
        topics: All that may be written to. Where a transaction of this id hangs, it is ended first; see `_sweep`.
    """

    def __init__(self, connection: Connection, transactional_id: str, topics: Iterable[str] = ()) -> None:
        self.transactional_id = transactional_id
        self.component = transactional_id.split(".")[1] if "." in transactional_id else transactional_id
        """Of `<run>.<component>...`: how its failpoints begin."""
        self._producer = open_transactional_producer(connection, transactional_id)
        self._open = False
        self._begun_at = math.inf
        self._failure: KafkaError | None = None
        self._called_at, self._calling = math.inf, ""
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="transaction-watch", daemon=True).start()
        try:
            self._sweep(held_back(connection, topics))
        except BaseException:
            self.close()
            raise

    def _sweep(self, places: list[tuple[str, int]]) -> None:
        """Write to partitions that are held back, and abort, so that a transaction that hangs there ends as aborted.

        A coordinator that aborts a transaction while its broker is starting knows no leader yet for its partitions,
        takes them for deleted, and leaves them without a marker (seen with Kafka 4.3). Readers then wait for ever, and
        worse: the next marker of this producer, a commit, would commit what was aborted. Where the transaction is
        another producer's, and goes on, this does no harm.
        """
        if not places:
            return
        where = ", ".join(f"{topic}[{partition}]" for topic, partition in places)
        log.info("transaction.swept", transactional_id=self.transactional_id, partitions=where)
        self.begin()
        self.produce(Outgoing(topic, b"", b"swept", partition=partition) for topic, partition in places)
        self.flush()
        self.abort()

    def _watch(self) -> None:
        """End the process when a call hangs past its own timeout, as librdkafka's was seen to for ten minutes.

        It is mostly the sending of offsets after a broker's restart, whose timeout nobody looks at (librdkafka #5456).
        Nothing is lost by it: the transaction aborts at the broker, and the successor begins from what is committed.
        """
        while not self._closed.wait(1.0):
            if time.monotonic() - self._called_at > STUCK_S:
                who = self.transactional_id
                log.error("transaction.stuck", transactional_id=who, doing=self._calling, seconds=STUCK_S)
                os._exit(STUCK_EXIT)

    def begin(self) -> None:
        """Open a transaction."""
        self._failure, self._begun_at = None, time.monotonic()
        self._guarded(self._producer.begin_transaction, "beginning a transaction")
        self._open = True
        reach(f"{self.component}.begun")

    def produce(self, outgoing: Iterable[Outgoing]) -> list[Ticket]:
        """Add records; returns a ticket for each."""
        return [self._produce_one(record) for record in outgoing]

    def _produce_one(self, record: Outgoing) -> Ticket:
        ticket = Ticket()

        def delivered(error: KafkaError | None, raw: RawMessage) -> None:
            if error is not None:
                self._failure = error
            else:
                ticket.offset = raw.offset() or 0

        def hand_over() -> None:
            self._producer.produce(
                record.topic,
                None if record.is_null else record.value,
                record.key or None,
                record.partition,
                on_delivery=delivered,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
            )

        while True:
            try:
                self._guarded(hand_over, f"producing to {record.topic}")
            except BufferError:
                self._producer.poll(0.1)
            else:
                return ticket

    def flush(self) -> None:
        """Wait until every record has its offset. Asked before sending offsets, it saves 100 ms of back-off."""
        try:
            while self._guarded(lambda: self._producer.flush(CALL_S), "delivering records"):
                log.info("kafka.waiting", doing="flushing a transaction", transactional_id=self.transactional_id)
        except SystemError as error:  # confluent-kafka 2.16 breaks off at a fatal error, and forgets to say at which
            self._open = False
            raise self._ended("delivering records: Kafka refuses this producer for good; this process ends") from error
        if self._failure is not None:
            self._abort(KafkaException(self._failure), "delivering records")
        reach(f"{self.component}.produced")

    def send_offsets(self, offsets: GroupOffsets) -> None:
        """Add a consumer group's positions; refused when the member's epoch is no longer the group's."""
        self._guarded(
            lambda: self._producer.send_offsets_to_transaction(offsets.positions, offsets.member, CALL_S),
            "sending offsets",
        )
        reach(f"{self.component}.offsets_sent")

    def commit(self) -> None:
        """Make all of it happen."""
        self.flush()
        reach(f"{self.component}.committing")
        self._guarded(lambda: self._producer.commit_transaction(CALL_S), "committing a transaction")
        self._open = False
        reach(f"{self.component}.committed")

    def abort(self) -> None:
        """Make none of it happen; nothing to do when no transaction is open."""
        if self._open:
            self._open = False
            self._producer.purge(in_queue=True, in_flight=False)
            self._guarded(lambda: self._producer.abort_transaction(CALL_S), "aborting a transaction")

    def close(self) -> None:
        """Abort what is open and leave; it never hides the error on account of which one leaves."""
        try:
            self.abort()
        except HeadraceError as error:
            log.warning("transaction.left_open", transactional_id=self.transactional_id, error=str(error))
        finally:
            self._closed.set()

    def _guarded(self, call: Callable[[], Any], doing: str) -> Any:
        pause = 0.02
        while True:
            try:
                self._called_at, self._calling = time.monotonic(), doing
                return call()
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                if cause.fatal():
                    raise self._fenced(error, doing) from error
                if cause.txn_requires_abort():
                    self._abort(error, doing)
                if cause.code() in LOST:
                    self._open = False
                    raise MustRestart(
                        f"{doing}: {cause.str()}; another producer begins from what is committed"
                    ) from error
                if isinstance(translate(error, doing), Fenced):
                    raise self._fenced(error, doing) from error
                if not (cause.retriable() or cause.code() in AWAY):
                    raise translate(error, doing) from error
                log.info("kafka.waiting", doing=doing, error=cause.str(), transactional_id=self.transactional_id)
                time.sleep(pause)
                pause = min(2 * pause, 1.0)
            finally:
                self._called_at = math.inf

    def _fenced(self, error: KafkaException, doing: str) -> Fenced:
        self._open = False
        return self._ended(str(translate(error, doing)))

    def _ended(self, why: str) -> Fenced:
        """Return the error of a producer that can write no more, by how long its transaction was open."""
        too_long = time.monotonic() - self._begun_at > TRANSACTION_TIMEOUT_MS / 1000
        return (Overdue if too_long else Fenced)(why)

    def _abort(self, error: KafkaException, doing: str) -> None:
        self.abort()
        raise Aborted(f"{doing}: {error.args[0].str()}; the transaction was aborted") from error
