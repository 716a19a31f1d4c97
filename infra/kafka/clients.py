"""Kafka clients with Headrace's settings, and the calls that every component makes.

With librdkafka's default back-off of 100 ms, back-to-back transactions wait 100 ms each; with 5 ms they take 5-10 ms.
All consumers use `read_committed`; otherwise they would read aborted records as data.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as RawMessage
from confluent_kafka.admin import AdminClient

from headrace.infra.backoff import Backoff
from headrace.infra.errors import FENCED, HeadraceError, Unavailable
from headrace.infra.kafka.client_reports import LINES, REPORTS
from headrace.infra.kafka.cluster_entry import ENTRIES
from headrace.infra.kafka.fatal_errors import call_client
from headrace.infra.kafka.token_function import OAUTH_CALLBACK, TokenFunction
from headrace.infra.kafka.watched_consumer import CALLS, WatchedConsumer
from headrace.schemas.headers import Headers

log = structlog.get_logger()

MESSAGE_BYTES = 8 << 20
READ_BUFFER_KIB = 32 * 1024
TRANSACTION_TIMEOUT_MS = 10_000
MOST_IN_FLIGHT = 5
"""Most requests in flight on a connection: for so many a broker remembers sequence numbers (KIP-98). With fewer, a
transaction over a far broker would take too long."""
QUICK_RETRY = {"retry.backoff.ms": 5, "retry.backoff.max.ms": 50, "reconnect.backoff.max.ms": 1000}
LINES_ASKED_FOR = {"debug", "log_level"}

AWAY_ERRORS = {
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - librdkafka's own codes begin with an underscore
    KafkaError._TRANSPORT,  # noqa: SLF001
    KafkaError._TIMED_OUT,  # noqa: SLF001
    KafkaError._RESOLVE,  # noqa: SLF001
    KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
    KafkaError._WAIT_COORD,  # noqa: SLF001
    KafkaError._NOENT,  # noqa: SLF001
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.UNKNOWN,  # an error within the broker, as when it shuts down or a disk of it fails
}
"""Temporary errors: the broker is unreachable or not ready yet."""
UNANSWERED = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT}  # noqa: SLF001
"""Errors of a client that knows no broker or gets no answer."""
PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}  # noqa: SLF001
"""Reports of records that were dropped because of another record."""

REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
}
"""Permanent errors: the broker would refuse the same record or rights again."""


class KafkaAway(Unavailable):
    """No broker answers at the address; the caller should wait."""


class KafkaRefused(HeadraceError):
    """The broker refuses: wrong credentials, missing rights, or a missing topic."""


TAIL_IS_LOST = "A broker may have lost data (disk, power, unclean election). New records would reuse the lost offsets"


class LogTruncated(HeadraceError):
    """A log ends before records that were already read: its tail is lost.

    Args:
        lost: Which partitions end where.
    """

    def __init__(self, lost: str) -> None:
        super().__init__(
            f"records that were read are gone from the end of the log: {lost}. {TAIL_IS_LOST}, so the run stops. Bring "
            "back a replica that has the lost records; or keep what is left with `headrace archive` and begin a new run"
        )
        self.lost = lost


class Fenced(HeadraceError):
    """Another process has taken over the transactional id; this process must end without writing."""

    exit_code = FENCED


class Overdue(Fenced):
    """The transaction was open for longer than Kafka allows; perhaps no other process took over.

    The process ends anyway, because another may have taken over; its supervisor starts it again.
    """

    exit_code = os.EX_TEMPFAIL


@dataclass(frozen=True, slots=True)
class Message:
    """One record from the log."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes
    headers: Headers = field(default_factory=list)
    timestamp_ms: int = 0
    is_null: bool = False
    """Whether the record has no value (a tombstone); `value` is then empty."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record to produce; partition -1: chosen by the key."""

    topic: str
    value: bytes
    key: bytes = b""
    headers: Headers = field(default_factory=list)
    partition: int = -1
    timestamp_ms: int = 0
    """0: the time of producing."""
    is_null: bool = False
    """Produce a record without a value (a tombstone)."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Address and client settings of a cluster."""

    bootstrap: str
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further librdkafka settings, for instance for SASL; they override Headrace's."""
    compression: str = "lz4"

    def config(self, on_report: Callable[[KafkaError], None] | None = None, **more: Any) -> dict[str, Any]:
        """Return librdkafka settings; keys of `more` have underscores for dots. Errors go to the log, and `on_report`.

        Debug lines enabled in `client` stay on standard error, because a client that is never polled could not pass
        them on.
        """
        dotted = {key.replace("_", "."): value for key, value in more.items()}
        own = self.client.get(OAUTH_CALLBACK)
        tokens = {OAUTH_CALLBACK: TokenFunction(own, build_cluster_key(self))} if own else {}
        lines = {} if LINES_ASKED_FOR & self.client.keys() else {"logger": LINES}
        return {
            "bootstrap.servers": self.bootstrap,
            "error_cb": partial(_log_report, build_cluster_key(self), on_report),
            "log_level": 0,  # librdkafka still writes a line on a fatal error
            **lines,
            "socket.keepalive.enable": True,
            "allow.auto.create.topics": False,  # otherwise asking for a deleted topic by name would recreate it
            "topic.metadata.refresh.interval.ms": 30_000,
            **QUICK_RETRY,
            **dotted,
            **self.client,
            **tokens,
        }


@dataclass(frozen=True, slots=True)
class RunAddress:
    """A run as the command line names it: `kafka://host:port[,host:port]/run`."""

    connection: Connection
    run: str

    def __str__(self) -> str:
        """Return the form that the command line takes."""
        return f"kafka://{self.connection.bootstrap}/{self.run}"


def _log_report(cluster: str, on_report: Callable[[KafkaError], None] | None, error: KafkaError) -> None:
    """Log librdkafka's reports outside calls: unreachable brokers, refused credentials."""
    ENTRIES.note_report(cluster, error)
    if on_report is not None:
        on_report(error)
    if error.code() in AWAY_ERRORS:
        # The Kafka client reports that it reaches no broker.
        log.debug("kafka.away", error=error.str())
    else:
        REPORTS.take(error.name(), error.str())


@contextmanager
def translate_kafka_errors(doing: str) -> Iterator[None]:
    """Translate librdkafka's errors into KafkaAway, Fenced or KafkaRefused, whose messages begin with `doing`."""
    try:
        yield
    except KafkaException as error:
        raise translate_error(error, doing) from error


def translate_error(error: KafkaException, doing: str) -> HeadraceError:
    """Return Headrace's error for a librdkafka error."""
    cause: KafkaError = error.args[0]
    if cause.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH):  # noqa: SLF001
        return Fenced(
            f"{doing}: another process has taken over, or a transaction was open for longer than Kafka allows "
            f"({cause.str()}); this process ends, and its successor goes on from the last commit"
        )
    if cause.code() == KafkaError.CONCURRENT_TRANSACTIONS:
        return KafkaAway(
            f"{doing}: Kafka has not ended the last transaction. If this error lasts, a broker may be down, or a topic "
            "may refuse the end marker (message.timestamp.before.max.ms, message.timestamp.after.max.ms): fix the "
            "cause, then restart the brokers"
        )
    if cause.code() in AWAY_ERRORS or cause.retriable():
        if cause.code() in UNANSWERED:
            forget_admins()
        return KafkaAway(f"{doing}: Kafka cannot do this now ({cause.str()}); check that Kafka runs and can be reached")
    if cause.code() == KafkaError._MAX_POLL_EXCEEDED:  # noqa: SLF001
        return KafkaRefused(
            f"{doing}: one record took longer than max.poll.interval.ms allows ({cause.str()}): raise "
            "max.poll.interval.ms in kafka.client. For a curator, quicker data algorithms help too"
        )
    return KafkaRefused(f"{doing}: Kafka answers {cause.name()}: {cause.str()}")


def open_producer(connection: Connection, name: str, **more: Any) -> Producer:
    """Return a producer, idempotent by default; it reports each record by its delivery callback.

    Of two requests in flight, a broker may refuse the first and accept the second, for instance while it becomes the
    leader: it has no earlier record of the producer on the partition, so it accepts any sequence number. librdkafka
    then reports the first as delivered too, but it is lost: see `is_delivered`.
    """
    settings = {
        "enable_idempotence": True,
        "max_in_flight": MOST_IN_FLIGHT,
        "linger_ms": 5,
        "batch_size": 1_000_000,
        "message_max_bytes": MESSAGE_BYTES,
        "compression_type": connection.compression,
    }
    made = connection.config(client_id=name, **{**settings, **more})
    with refuse_missing_token(connection):
        return Producer(made)


def is_delivered(raw: RawMessage) -> bool:
    """Return whether a record reported without an error is certainly in the log: then it has an offset.

    librdkafka also reports a record because a later one of its partition was acknowledged (`rd_kafka_dr_implicit_ack`).
    Then it knows no offset, and the record may be lost. A record sent twice, because its first acknowledgement was
    lost, looks the same.
    """
    return raw.offset() is not None


def open_transactional_producer(
    connection: Connection,
    transactional_id: str,
    timeout_s: float = 60,
    on_report: Callable[[KafkaError], None] | None = None,
) -> Producer:
    """Return a producer that has taken over the transactional id from any earlier process (KIP-98).

    `on_report` gets what the client reports outside of calls, during a later call.
    """
    producer = open_producer(
        connection,
        transactional_id,
        on_report=on_report,
        transactional_id=transactional_id,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    )
    doing = f"taking over transactional id {transactional_id}"

    def take_over() -> None:
        with CALLS.watch(doing, partial(_has_to_wait, connection)):
            producer.init_transactions(10)

    call_patiently(take_over, doing, timeout_s)
    return producer


def open_consumer(
    connection: Connection,
    name: str,
    group: str = "",
    *,
    run: str = "",
    on_commit: Callable[..., object] | None = None,
    **more: Any,
) -> WatchedConsumer:
    """Return a consumer of committed records; with a group it is a KIP-848 member.

    Without a group it never falls back to the beginning: if the log has no record at a position, it returns the error
    `_AUTO_OFFSET_RESET`. librdkafka asks for a group's coordinator even then, so `run` gives a group name under the
    prefix for which the run's user has rights. `on_commit` gets the results of asynchronous commits, in a poll.

    A call waits while another thread is in a call of the same consumer, its callbacks included (confluent-kafka 2.16).
    """
    protocol: dict[str, Any] = {"group_protocol": "consumer"} if group else {}
    callbacks = {} if on_commit is None else {"on_commit": on_commit}
    made = connection.config(
        client_id=name,
        group_id=group or f"{run}.{name}-alone",
        isolation_level="read_committed",
        enable_auto_commit=False,
        enable_auto_offset_store=False,
        auto_offset_reset="earliest" if group else "error",
        fetch_wait_max_ms=100,
        fetch_message_max_bytes=MESSAGE_BYTES,
        queued_max_messages_kbytes=READ_BUFFER_KIB,
        **protocol,
        **more,
    )
    with refuse_missing_token(connection):
        consumer = WatchedConsumer(made, **callbacks)
    consumer.has_to_wait = partial(_has_to_wait, connection)
    return consumer


@contextmanager
def refuse_missing_token(connection: Connection) -> Iterator[None]:
    """Raise KafkaAway if a client cannot be made because the user's function gave no token."""
    try:
        yield
    except KafkaException as error:
        why = ENTRIES.describe_missing_token(build_cluster_key(connection), connection.client)
        if OAUTH_CALLBACK not in connection.client or not why:
            raise
        raise KafkaAway(f"no Kafka client can be made: {why}") from error


def call_patiently(call: Callable[[], Any], doing: str, timeout_s: float) -> Any:
    """Call until it succeeds, waiting for unreachable brokers; raise the translated error after `timeout_s`."""
    end = time.monotonic() + timeout_s
    backoff = Backoff(0.02, 1.0)
    while True:
        try:
            return call_client(call)
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            if not (cause.retriable() or cause.code() in AWAY_ERRORS) or time.monotonic() > end:
                raise translate_error(error, doing) from error
            # A request to Kafka is tried again.
            log.debug("kafka.waiting", doing=doing, error=cause.str())
            if cause.code() in UNANSWERED:
                forget_admins()
            time.sleep(backoff.next_s())


ADMIN_GRACE_S = 20.0
_admins: dict[str, tuple[AdminClient, float]] = {}
"""By cluster: its client, and when it was made."""
_former_admins: deque[AdminClient] = deque(maxlen=4)
"""Kept a while for callers that still wait: without references a client loses its answers."""


def get_admin(connection: Connection) -> AdminClient:
    """Return the process's admin client of a cluster.

    It is shared and cached, because the first request of a new client may take 3 s, if librdkafka drops the bootstrap
    connection meanwhile.
    """
    cluster = build_cluster_key(connection)
    if (found := _admins.get(cluster)) is None:
        with refuse_missing_token(connection):
            found = _admins[cluster] = AdminClient(connection.config()), time.monotonic()
    return found[0]


def forget_admins(older_than_s: float = ADMIN_GRACE_S) -> None:
    """Let the next requests use new admin clients: one that finds no broker may never find one again.

    Called after a request without an answer. A young client stays, because its first answer may take long.
    """
    for cluster, (_, made_at) in list(_admins.items()):
        if time.monotonic() - made_at > older_than_s and (former := _admins.pop(cluster, None)) is not None:
            _former_admins.append(former[0])


def is_answering(connection: Connection, timeout_s: float = 1.0) -> bool:
    """Return whether a broker answers this process's admin client within a timeout."""
    try:
        return bool(get_admin(connection).list_topics(timeout=timeout_s).brokers)
    except (KafkaException, Unavailable):  # Unavailable: a client that cannot be made now
        forget_admins()  # that one may have lost its brokers
        return False


def _has_to_wait(connection: Connection) -> bool:
    return not is_answering(connection)


def build_cluster_key(connection: Connection) -> str:
    """Return a key for a cluster and its client settings; it may contain a password."""
    return json.dumps([connection.bootstrap, dict(connection.client)])
