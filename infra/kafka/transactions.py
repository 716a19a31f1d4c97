"""One transactional producer: begin, produce, flush, send offsets, commit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, NoReturn, Protocol, TypeVar

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as RawMessage

from headrace.infra.backoff import Backoff
from headrace.infra.errors import HeadraceError, Unavailable
from headrace.infra.failpoints import reach
from headrace.infra.kafka.broker_contact import BrokerContact
from headrace.infra.kafka.call_watch import CallWatch
from headrace.infra.kafka.clients import (
    AWAY_ERRORS,
    PURGED,
    REFUSED,
    TRANSACTION_TIMEOUT_MS,
    Connection,
    Fenced,
    KafkaRefused,
    Outgoing,
    Overdue,
    is_delivered,
    open_transactional_producer,
    translate_error,
)
from headrace.infra.kafka.cluster_topics import find_held_back
from headrace.infra.kafka.deleted_topics import GONE_S, describe_deleted
from headrace.infra.kafka.fatal_errors import call_client
from headrace.infra.kafka.outage import Outage
from headrace.infra.kafka.repeated_aborts import RepeatedAborts, describe_end
from headrace.infra.kafka.topic_reader import name_partition
from headrace.infra.kafka.transaction_ends import TransactionEnds
from headrace.infra.process.signals import MustRestart

log = structlog.get_logger()

MOST_BATCH_BYTES = 8 << 20
"""Most bytes in one transaction, except for a single larger record."""
CALL_S = 5.0
"""Seconds that one call to the coordinator waits before it is repeated."""
RENEW_S = 10.0
"""Seconds after which no further try begins to open a new producer in the middle of the work: a successor that starts
meanwhile would be fenced."""
TOPIC_LOOK_EVERY_S = 1.0
LOST = {KafkaError.INVALID_TXN_STATE, KafkaError._STATE}  # noqa: SLF001
"""Client and broker disagree on the transaction, for instance after lost answers of the broker."""


class Aborted(Unavailable):
    """The transaction was aborted: none of it happened, and memory changed meanwhile must be rebuilt."""


class HasValue(Protocol):
    """An object with the bytes of a record's value."""

    @property
    def value(self) -> bytes:
        """Its bytes."""
        ...


Valued = TypeVar("Valued", bound=HasValue)


def split_into_transactions(records: Iterable[Valued], most: int) -> Iterator[list[Valued]]:
    """Yield records in pieces for one transaction each: at most `most` records and some MiB."""
    batch: list[Valued] = []
    size = 0
    for record in records:
        if batch and (len(batch) == most or size + len(record.value) > MOST_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(record.value)
    if batch:
        yield batch


@dataclass(slots=True)
class Ticket:
    """A produced record; its offset is known after the flush."""

    offset: int = -1


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """A consumer group's positions, as a member commits them."""

    positions: list[TopicPartition]
    """Next offsets, with the metadata that a restore reads."""
    member: Any
    """The group's metadata from the poll that returned the records: the broker refuses an older epoch."""


class TransactionalWriter:
    """Writes records and consumer offsets all at once or not at all (KIP-98, KIP-447).

    Every method raises Aborted if the transaction did not happen; KafkaRefused if it did not happen and a retry is
    useless (for instance a topic is missing for GONE_S); MustRestart if this producer can no longer write; and Fenced
    if another process has taken over the transactional id. A commit is repeated until its result is known.

    Args:
        connection: The cluster.
        transactional_id: The id to take over: an earlier holder is fenced, and its open transaction aborted.
        topics: All topics to which it may write. A hanging transaction of this id is ended first
        (`_abort_hanging_transactions`).
    """

    def __init__(self, connection: Connection, transactional_id: str, topics: Iterable[str] = ()) -> None:
        self.transactional_id = transactional_id
        self.component = transactional_id.split(".")[1] if "." in transactional_id else transactional_id
        """The component in `<run>.<component>...`, which is the prefix of its failpoints."""
        self._connection = connection
        self._open_producer()
        self._open = False
        self._begun_at = math.inf
        self._ends = TransactionEnds(connection, transactional_id)
        self._aborts = RepeatedAborts()
        self._failure: tuple[KafkaError, Outgoing] | None = None
        """The first undelivered record of the transaction, and why."""
        self._calls = CallWatch(transactional_id)
        try:
            self._abort_hanging_transactions(find_held_back(connection, topics))
        except BaseException:
            self.close()
            raise

    def _open_producer(self, timeout_s: float = 60) -> None:
        """Open a producer, which fences an earlier one."""
        outage = Outage()
        opened = open_transactional_producer(self._connection, self.transactional_id, timeout_s, outage.note)
        self._producer, self._outage, self._knows_coordinator = opened, outage, False
        self._contact = BrokerContact(opened, self._connection)

    def _renew_producer(self) -> NoReturn:
        """Abort, go on with a new producer, and raise Aborted. Raises MustRestart if Kafka is away meanwhile."""
        self.abort()  # with records in the transaction, this fails if another process has taken over
        try:
            self._open_producer(RENEW_S)
        except Unavailable as error:
            raise MustRestart(f"{error}; the component starts again") from error
        raise Aborted("sending offsets: Kafka was away, so the transaction was aborted")

    def _abort_hanging_transactions(self, partition_ids: list[tuple[str, int]]) -> None:
        """Write to held-back partitions, and abort, so that a hanging transaction there ends as aborted.

        A coordinator that aborts a transaction while its broker is starting has no leader for the partitions yet,
        treats them as deleted, and writes no marker (seen with Kafka 4.3). Then readers wait for ever, and worse, the
        next commit marker of this producer would commit the aborted records. If the transaction belongs to another,
        running producer, this does no harm.
        """
        if not partition_ids:
            return
        for topic, found in groupby(partition_ids, key=itemgetter(0)):
            partitions = [partition for _, partition in found]
            where = ", ".join(name_partition((topic, partition)) for partition in partitions)
            try:
                self.begin()
                self.produce(Outgoing(topic, b"", b"swept", partition=partition) for partition in partitions)
                self.flush()
                self.abort()
            except KafkaRefused as error:  # without the right to write there, no own transaction can hang there
                # A hanging transaction blocks readers, but this client may not write to the topic: another must end it.
                log.warning("transaction.not_swept", transactional_id=self.transactional_id, why=str(error))
            else:
                # A hanging transaction that blocked readers of `partitions` was ended.
                log.info("transaction.swept", transactional_id=self.transactional_id, partitions=where)
            finally:
                self._ends.forget_aborts()  # others may still have open transactions there: no reason to wait

    def begin(self) -> None:
        """Open a transaction."""
        self._ends.begin()
        self._failure, self._begun_at = None, time.monotonic()
        self._guard(self._producer.begin_transaction, "beginning a transaction")
        self._open = True
        reach(f"{self.component}.begun")

    def produce(self, outgoing: Iterable[Outgoing]) -> list[Ticket]:
        """Add records; returns a ticket for each."""
        return [self._produce_one(record) for record in outgoing]

    def _produce_one(self, record: Outgoing) -> Ticket:
        ticket = Ticket()
        if record.partition >= 0:
            self._ends.note_record((record.topic, record.partition))

        def note_delivery(error: KafkaError | None, raw: RawMessage) -> None:
            if error is None and not is_delivered(raw):
                error = KafkaError(KafkaError._TIMED_OUT, "Kafka gave no offset for a record: the record may be lost")  # noqa: SLF001
            partition = (raw.partition() if record.partition < 0 else record.partition) or 0
            partition_id = record.topic, max(0, partition)
            if error is None:
                ticket.offset = raw.offset() or 0
                self._ends.note_delivery(partition_id, ticket.offset)
                return
            self._ends.note_record(partition_id)
            if self._failure is None or self._failure[0].code() in PURGED:
                self._failure = error, record  # later records are purged after a refused one, and may be reported first

        def hand_over() -> None:
            self._producer.produce(
                record.topic,
                None if record.is_null else record.value,
                record.key or None,
                record.partition,
                on_delivery=note_delivery,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
            )

        while True:
            try:
                self._guard(hand_over, f"producing {_name_record(record)}")
            except BufferError:
                self._guard(lambda: self._producer.poll(0.1), "delivering records")
            else:
                return ticket

    def flush(self) -> None:
        """Wait until every record has its offset. Called before sending offsets, it saves 100 ms of back-off."""
        try:
            while self._guard(lambda: self._producer.flush(CALL_S), "delivering records"):
                self._wait_for_kafka("delivering records", "no acknowledgement yet")
        except SystemError as error:  # confluent-kafka 2.16 breaks off at a fatal error
            self._raise_fatal(error, "delivering records")
        if self._failure is not None:
            self._raise_undelivered(*self._failure)
        reach(f"{self.component}.produced")

    def send_offsets(self, offsets: GroupOffsets) -> None:
        """Add a consumer group's positions; the broker refuses them if the member's epoch is outdated.

        After Kafka was away, it raises Aborted and goes on with a new producer, because the old one might wait for
        ever: librdkafka (2.10 and later) forgets a broker that is away, but not that it was the group's coordinator
        (librdkafka #5511, #5456).
        """
        self._guard(lambda: self._producer.poll(0), "taking in reports")
        if not self._knows_coordinator:  # then it looks for it
            self._outage.is_noted = False
        elif self._outage.is_noted and self._ends.can_abort_safely():
            self._renew_producer()
        self._knows_coordinator = True
        self._ends.note_consumer_offsets()
        self._guard(
            lambda: self._producer.send_offsets_to_transaction(offsets.positions, offsets.member, CALL_S),
            "sending offsets",
        )
        self._outage.is_noted = False  # it found the coordinator
        reach(f"{self.component}.offsets_sent")

    def commit(self) -> None:
        """Commit the transaction."""
        self.flush()
        reach(f"{self.component}.committing")
        self._guard(lambda: self._producer.commit_transaction(CALL_S), "committing a transaction")
        self._open = False
        self._ends.note_commit()
        self._aborts.reset()
        self._contact.note_answer()
        reach(f"{self.component}.committed")

    def abort(self) -> None:
        """Abort the open transaction, if there is one."""
        if self._open:
            self._open = False
            self._producer.purge(in_queue=True, in_flight=False)
            self._guard(lambda: self._producer.abort_transaction(CALL_S), "aborting a transaction")
            self._ends.note_abort()

    def refuse_hanging_commit(self) -> None:
        """Look now and then whether readers get past the last commit. Raises MustRestart if Kafka never ended it."""
        if not self._open:
            self._ends.refuse_hanging_commit()

    def close(self) -> None:
        """Abort an open transaction and close the producer; it never hides an earlier error."""
        try:
            self.abort()
        except HeadraceError as error:
            # The open transaction could not be aborted at the end; the broker aborts it later.
            log.warning("transaction.left_open", transactional_id=self.transactional_id, error=str(error))
        finally:
            self._calls.close()

    def _guard(self, call: Callable[[], Any], doing: str) -> Any:
        backoff = Backoff(0.02, 1.0)
        while True:
            try:
                with self._calls.watch(doing):
                    return call_client(call)
            except KafkaException as error:
                cause: KafkaError = error.args[0]
                if cause.code() == KafkaError._FATAL and self._open:  # noqa: SLF001 - of an earlier call
                    self._raise_fatal(error, doing)
                is_fenced, is_fatal = isinstance(translate_error(error, doing), Fenced), cause.fatal()
                if is_fatal and is_fenced:
                    raise self._fenced_error(error, doing) from error
                if not is_fatal and cause.txn_requires_abort():
                    self._abort(error, doing)
                if is_fatal or cause.code() in LOST:
                    self._open = False
                    raise MustRestart(
                        f"{doing}: {cause.str()}; the component goes on with a new producer, from what is committed"
                    ) from error
                if is_fenced:
                    raise self._fenced_error(error, doing) from error
                if not (cause.retriable() or cause.code() in AWAY_ERRORS):
                    raise translate_error(error, doing) from error
                self._wait_for_kafka(doing, cause.str(), backoff.next_s())

    def _wait_for_kafka(self, doing: str, why: str, pause_s: float = 0.0) -> None:
        """Log that a call is repeated, and wait before it. Raises MustRestart if the producer has lost every broker."""
        log.info("kafka.waiting", doing=doing, error=why, transactional_id=self.transactional_id)
        try:
            self._contact.refuse_loss(is_answered=False, doing=doing)
        except MustRestart:
            self._open = False  # nothing can abort it now but the successor
            raise
        time.sleep(pause_s)

    def _raise_fatal(self, error: Exception, doing: str) -> NoReturn:
        """Raise the client's fatal error, which only its next call reports."""
        self._open = False
        self._guard(lambda: self._producer.abort_transaction(CALL_S), doing)
        self._ends.note_abort()
        raise Aborted(f"{doing}: the Kafka client failed; the transaction was aborted") from error

    def _fenced_error(self, error: KafkaException, doing: str) -> Fenced:
        self._open = False
        return self._end_error(str(translate_error(error, doing)))

    def _end_error(self, why: str) -> Fenced:
        """Return the error of a producer that can no longer write, by how long its transaction was open."""
        too_long = time.monotonic() - self._begun_at > TRANSACTION_TIMEOUT_MS / 1000
        return (Overdue if too_long else Fenced)(why)

    def _abort(self, error: KafkaException, doing: str) -> None:
        """Abort, and raise Aborted if a retry may succeed, else KafkaRefused."""
        self.abort()
        cause: KafkaError = error.args[0]
        is_repeated = self._aborts.note_abort(cause)
        if is_repeated or cause.code() in REFUSED:
            raise KafkaRefused(
                f"{doing}: Kafka answers {cause.name()}: {cause.str()}; {describe_end(cause)}"
            ) from error
        raise Aborted(f"{doing}: {cause.str()}; the transaction was aborted") from error

    def _raise_undelivered(self, cause: KafkaError, record: Outgoing) -> None:
        """Abort because of an undelivered record, and raise the matching error.

        A broker that has lost the topic does not say so: the record times out, and the abort may be refused as if the
        producer were fenced.
        """
        doing = f"delivering {_name_record(record)}"
        try:
            self._abort(KafkaException(cause), doing)
        except KafkaRefused:
            raise
        except HeadraceError as error:
            if not _wait_for_topic(self._producer, record):
                raise KafkaRefused(f"{doing}: {describe_deleted(_partition_of(record), GONE_S)}") from error
            raise


def _wait_for_topic(producer: Producer, record: Outgoing) -> bool:
    """Wait at most GONE_S for the topic of a record while Kafka answers; return False if it stays missing."""
    begun, said = time.monotonic(), False
    while True:
        try:
            topics = producer.list_topics(timeout=CALL_S).topics  # a request by name might recreate it
        except KafkaException:
            return True
        if record.topic in topics and (record.partition < 0 or record.partition in topics[record.topic].partitions):
            return True
        if not said:
            said = True
            log.warning("topic.gone", topic=record.topic, partition=record.partition, patience_s=GONE_S)
        if time.monotonic() - begun >= GONE_S:
            return False
        time.sleep(TOPIC_LOOK_EVERY_S)


def _partition_of(record: Outgoing) -> str:
    return record.topic if record.partition < 0 else f"{record.topic}[{record.partition}]"


def _name_record(record: Outgoing) -> str:
    return f"{record.topic} {record.key[:80].decode(errors='replace')!r} of {len(record.value):,} bytes"
