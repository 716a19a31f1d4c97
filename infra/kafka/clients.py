"""Kafka clients as Headrace sets them, and the few calls that every component makes.

The figures behind the settings: with librdkafka's own back-off of 100 ms, back-to-back transactions wait 100 ms each;
with 5 ms they take 5-10. `read_committed` everywhere, or aborted records would be read as data.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import structlog
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as RawMessage
from confluent_kafka.admin import AdminClient, OffsetSpec

from headrace.infra.backoff import Backoff
from headrace.infra.errors import FENCED, HeadraceError, Unavailable
from headrace.infra.kafka.client_reports import LINES, REPORTS
from headrace.infra.kafka.cluster_entry import ENTRIES
from headrace.infra.process.signals import MustRestart
from headrace.schemas.headers import Headers

log = structlog.get_logger()

MESSAGE_BYTES = 8 << 20
READ_BUFFER_KIB = 32 * 1024
TRANSACTION_TIMEOUT_MS = 10_000
MOST_IN_FLIGHT = 5
"""Requests under way on a connection: the most of which a broker remembers the sequence numbers (KIP-98)."""
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
"""Errors that pass with time: the broker is unreachable, or not ready yet."""

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
"""Errors that no time heals: the same record, or the same rights, are refused again."""


class KafkaAway(Unavailable):
    """No broker answers at the address; waiting is right."""


class KafkaRefused(HeadraceError):
    """The broker answers and refuses: wrong credentials, no rights, a missing topic."""


class LogTruncated(HeadraceError):
    """A log ends before records that were read from it: a tail of it is lost."""


class Fenced(HeadraceError):
    """Another process has taken over this one's transactional id; this one must end and write nothing more."""

    exit_code = FENCED


class Overdue(Fenced):
    """The transaction was open for longer than Kafka allows, perhaps without Kafka; nobody need have taken over.

    The process ends all the same, as somebody may have; its supervisor starts it again.
    """

    exit_code = os.EX_TEMPFAIL


@dataclass(frozen=True, slots=True)
class Message:
    """One record as it came from the log."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes
    headers: Headers = field(default_factory=list)
    timestamp_ms: int = 0
    is_null: bool = False
    """There is no value, as in a tombstone; `value` is then empty."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record to be produced; partition -1 leaves the choice to the key."""

    topic: str
    value: bytes
    key: bytes = b""
    headers: Headers = field(default_factory=list)
    partition: int = -1
    timestamp_ms: int = 0
    """0 for the time of producing."""
    is_null: bool = False
    """Produce no value at all, as in a tombstone."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the cluster is and how to speak with it."""

    bootstrap: str
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further librdkafka settings, for instance for SASL; they win over ours."""
    compression: str = "lz4"

    def config(self, **more: Any) -> dict[str, Any]:
        """Return librdkafka settings; keys of `more` have underscores for dots. Errors go to the log alone.

        Lines of its own that librdkafka is asked for in `client` stay on standard error as it writes them: a client
        that nobody polls would keep them.
        """
        dotted = {key.replace("_", "."): value for key, value in more.items()}
        lines = {} if LINES_ASKED_FOR & self.client.keys() else {"logger": LINES}
        return {
            "bootstrap.servers": self.bootstrap,
            "error_cb": partial(_take_report, name_cluster(self)),
            "log_level": 0,  # its line on a fatal error is left
            **lines,
            "socket.keepalive.enable": True,
            "allow.auto.create.topics": False,  # or a topic that is asked for by its name, and was deleted, is back
            "topic.metadata.refresh.interval.ms": 30_000,
            **QUICK_RETRY,
            **dotted,
            **self.client,
        }


@dataclass(frozen=True, slots=True)
class RunAddress:
    """A run as the command line names it: `kafka://host:port[,host:port]/run`."""

    connection: Connection
    run: str

    def __str__(self) -> str:
        """Return the form that the command line takes."""
        return f"kafka://{self.connection.bootstrap}/{self.run}"


def _take_report(cluster: str, error: KafkaError) -> None:
    """Log what librdkafka reports beside the calls: unreachable brokers, refused credentials."""
    ENTRIES.note_report(cluster, error)
    if error.code() in AWAY_ERRORS:
        log.debug("kafka.away", error=error.str())
    else:
        REPORTS.take(error.name(), error.str())


@contextmanager
def translate_kafka_errors(doing: str) -> Iterator[None]:
    """Turn librdkafka's errors into ours: KafkaAway, Fenced or KafkaRefused, each saying what was being done."""
    try:
        yield
    except KafkaException as error:
        raise translate_error(error, doing) from error


def translate_error(error: KafkaException, doing: str) -> HeadraceError:
    """Return our error for librdkafka's."""
    cause: KafkaError = error.args[0]
    if cause.code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH):  # noqa: SLF001
        return Fenced(
            f"{doing}: another process has taken over, or a transaction was open for longer than Kafka allows "
            f"({cause.str()}); this process ends, and its successor goes on from the last commit"
        )
    if cause.code() == KafkaError.CONCURRENT_TRANSACTIONS:
        return KafkaAway(
            f"{doing}: Kafka has not ended the last transaction yet. If this lasts, a topic refuses the transaction's "
            "end marker (message.timestamp.before.max.ms, ...after.max.ms), or a broker is down: correct that, then "
            "start the brokers again"
        )
    if cause.code() in AWAY_ERRORS or cause.retriable():
        return KafkaAway(f"{doing}: no answer from Kafka ({cause.str()}); check that it runs and can be reached")
    if cause.code() == KafkaError._MAX_POLL_EXCEEDED:  # noqa: SLF001
        return KafkaRefused(
            f"{doing}: one record took longer than max.poll.interval.ms allows ({cause.str()}): make the data "
            "algorithms quicker, or raise max.poll.interval.ms in kafka.client"
        )
    return KafkaRefused(f"{doing}: Kafka answers {cause.name()}: {cause.str()}")


def open_producer(connection: Connection, name: str, **more: Any) -> Producer:
    """Return a producer, idempotent unless `more` sets it otherwise; it reports each record by its delivery callback.

    Of two requests under way a broker may refuse the first and take the second, as when it is just becoming the
    leader: it has no earlier record of the producer on the partition, so any number begins one. librdkafka then reports
    the first as delivered as well, and it is lost: see `is_delivered`.
    """
    settings = {
        "enable_idempotence": True,
        "max_in_flight": MOST_IN_FLIGHT,
        "linger_ms": 5,
        "batch_size": 1_000_000,
        "message_max_bytes": MESSAGE_BYTES,
        "compression_type": connection.compression,
    }
    return Producer(connection.config(client_id=name, **{**settings, **more}))


def is_delivered(raw: RawMessage) -> bool:
    """Return whether a record that was reported without an error is in the log for certain: it has an offset.

    librdkafka also reports a record because a later one of its partition was acknowledged (`rd_kafka_dr_implicit_ack`).
    It then knows no offset, and the record may be lost. One that was sent twice, as its first acknowledgement got lost,
    looks the same.
    """
    return raw.offset() is not None


def open_transactional_producer(connection: Connection, transactional_id: str, timeout_s: float = 60) -> Producer:
    """Return a producer whose transactional id is taken over from any process that held it before (KIP-98)."""
    producer = open_producer(
        connection,
        transactional_id,
        transactional_id=transactional_id,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    )
    call_patiently(
        lambda: producer.init_transactions(10), f"taking over transactional id {transactional_id}", timeout_s
    )
    return producer


def open_consumer(connection: Connection, name: str, group: str = "", *, run: str = "", **more: Any) -> Consumer:
    """Return a consumer that reads committed records only; with a group it is a KIP-848 member.

    One without a group never falls back to the beginning: its positions are its owner's, and where the log has no
    record at one it hands over the error `_AUTO_OFFSET_RESET`. librdkafka asks for the coordinator of a group all the
    same, so `run` puts the name of one under the prefix on which a run's user has rights.
    """
    protocol = {"group_protocol": "consumer"} if group else {}
    return Consumer(
        connection.config(
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
        ),
    )


def call_patiently(call: Callable[[], Any], doing: str, timeout_s: float) -> Any:
    """Call until it succeeds, waiting for unreachable brokers; raise the translated error at the end of patience."""
    end = time.monotonic() + timeout_s
    backoff = Backoff(0.02, 1.0)
    while True:
        try:
            return call()
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            if not (cause.retriable() or cause.code() in AWAY_ERRORS) or time.monotonic() > end:
                raise translate_error(error, doing) from error
            log.debug("kafka.waiting", doing=doing, error=cause.str())
            time.sleep(backoff.next_s())


def message_of(raw: RawMessage) -> Message:
    """Return a record without librdkafka's handle."""
    value = raw.value()
    return Message(
        topic=raw.topic() or "",
        partition=raw.partition() or 0,
        offset=raw.offset() or 0,
        key=raw.key() or b"",
        value=value or b"",
        headers=_headers_of(raw),
        timestamp_ms=raw.timestamp()[1],
        is_null=value is None,
    )


def _headers_of(raw: RawMessage) -> Headers:
    """Return a record's headers; none when a name is no UTF-8, which the client cannot hand over."""
    try:
        found = cast(Headers, raw.headers() or [])
    except (SystemError, UnicodeDecodeError):  # asked again, the client would hand over a list with holes
        return []
    return [(name, value) for name, value in found if value is not None]


def take_good_messages(raw: Iterable[RawMessage], doing: str) -> list[Message]:
    """Return the records of a poll; errors that time heals are passed over, others raise."""
    found = []
    for item in raw:
        error = item.error()
        if error is None:
            found.append(message_of(item))
        elif error.code() not in AWAY_ERRORS and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
            if error.code() == KafkaError._FATAL:  # noqa: SLF001
                raise MustRestart(f"{doing}: {error.str()}; the component goes on with a new client")
            raise translate_error(KafkaException(error), doing)
    return found


_admins: dict[str, AdminClient] = {}

MOVED_LEADER = {KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH}
"""A kept admin client goes on asking with the leader epochs of before a broker's restart."""
SETTLING = {
    *MOVED_LEADER,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError._NOENT,  # noqa: SLF001 - "no leaders found", of a topic that was just made
}
"""The broker answers, and does not serve the partition yet."""
SETTLING_S = 5.0


def get_admin(connection: Connection) -> AdminClient:
    """Return the process's admin client of a cluster.

    It is shared, and kept: a fresh one's first question may take 3 s, when librdkafka drops the bootstrap connection
    with the question in flight; and one that is not referenced loses its answers.
    """
    cluster = name_cluster(connection)
    if cluster not in _admins:
        _admins[cluster] = AdminClient(connection.config())
    return _admins[cluster]


def name_cluster(connection: Connection) -> str:
    """Return a name of a cluster and of how it is spoken with; it may hold a password."""
    return json.dumps([connection.bootstrap, dict(connection.client)])


def fetch_partitions(connection: Connection, topic: str) -> int:
    """Return how many partitions a topic has. Raises KafkaAway, or KafkaRefused when there is none of that name."""
    with translate_kafka_errors(f"asking for topic {topic}"):
        found = get_admin(connection).list_topics(topic, timeout=10).topics[topic]
    if found.error is not None:
        raise KafkaRefused(
            f"topic {topic} cannot be read: {found.error.str()}; if it is missing, `headrace topics` creates it"
        )
    if not found.partitions:  # whoever took that for the truth would find no past in it, and begin anew
        raise KafkaAway(f"Kafka lists no partitions of topic {topic}: its broker may not be ready yet")
    return len(found.partitions)


def fetch_end_offsets(connection: Connection, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return high watermarks, open transactions included: what a restore must read past.

    Topics that were just created, and a broker that has just started, get a few seconds.
    """
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the client's own gap
    return _fetch_offsets_patiently(connection, list(partitions), latest, "ends")


def fetch_stable_ends(connection: Connection, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return where readers of committed records get to: all transactions before that have ended."""
    latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the client's own gap
    return _fetch_offsets_patiently(connection, list(partitions), latest, "ends", IsolationLevel.READ_COMMITTED)


def fetch_begin_offsets(connection: Connection, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return the first offsets that there are: records before them were deleted. As patient as `fetch_end_offsets`."""
    earliest: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # the client's own gap
    return _fetch_offsets_patiently(connection, list(partitions), earliest, "beginnings")


def _fetch_offsets_patiently(
    connection: Connection,
    partitions: list[tuple[str, int]],
    spec: OffsetSpec,
    what: str,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[tuple[str, int], int]:
    end = 0.0
    while True:
        try:
            return _fetch_offsets(connection, partitions, spec, isolation)
        except KafkaException as error:
            code = error.args[0].code()
            end = end or time.monotonic() + SETTLING_S  # from the first answer on: it may have taken longer than that
            if code in MOVED_LEADER:
                _admins.pop(name_cluster(connection), None)
            if code not in SETTLING or time.monotonic() > end:
                raise translate_error(error, f"asking for the {what} of topics") from error
            time.sleep(0.05)


def _fetch_offsets(
    connection: Connection, partitions: list[tuple[str, int]], spec: OffsetSpec, isolation: IsolationLevel
) -> dict[tuple[str, int], int]:
    asked = {TopicPartition(topic, partition): spec for topic, partition in partitions}
    admin = get_admin(connection)
    futures = admin.list_offsets(asked, isolation_level=isolation, request_timeout=10) if asked else {}
    found = {(tp.topic, tp.partition): future.result().offset for tp, future in futures.items()}
    if unknown := [f"{topic}[{partition}]" for (topic, partition), offset in found.items() if offset < 0]:
        reason = f"Kafka does not know the offsets of {', '.join(unknown)} yet; their broker may not be ready"
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, reason, retriable=True))
    return found
