"""The worker's producer: idempotent, without a time limit; a separate thread handles acknowledgements."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as RawMessage

from headrace.infra.kafka.broker_contact import BrokerContact
from headrace.infra.kafka.clients import (
    Connection,
    KafkaRefused,
    Outgoing,
    is_delivered,
    open_producer,
    translate_error,
)
from headrace.infra.kafka.fatal_errors import call_client
from headrace.infra.process.end_report import end_process
from headrace.infra.stopwatch import Stopwatch

OnDelivery = Callable[[KafkaError | None, RawMessage], None]

log = structlog.get_logger()

DELIVERY_POLL_S = 0.1
FULL_S = 0.05


class RecordProducer:
    """Sends records. `message.timeout.ms = 0`: it waits for an unreachable broker and keeps the order of records.

    Args:
        connection: The cluster.
        name: Client id.
        watch: Stopwatch of the sending thread; counts `produce`.
    """

    def __init__(self, connection: Connection, name: str, watch: Stopwatch) -> None:
        self._producer = open_producer(connection, name, message_timeout_ms=0)
        self._contact = BrokerContact(self._producer, connection)
        self._watch = watch
        self._lost: deque[tuple[Outgoing, OnDelivery]] = deque()
        """Records reported as delivered that may be lost; the thread sends them again."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll_until_closed, name="producer-poll", daemon=True)
        self._thread.start()

    def _poll_until_closed(self) -> None:
        """Take in acknowledgements; if there can be none any more, the process ends.

        Nothing is lost: tasks without acknowledged groups are not committed, and are played again.
        """
        while not self._stop.is_set():
            is_answered = self._serve(lambda: self._producer.poll(DELIVERY_POLL_S)) > 0
            self._send_again()
            if is_answered or len(self._producer) == 0:
                self._contact.note_answer()
            elif self._contact.has_lost_brokers():
                self._end("it has lost every broker, although Kafka can be reached")

    def _serve(self, call: Callable[[], int]) -> int:
        """Call the client; end the process if it meets a fatal error, which it reports to one thread only."""
        try:
            left: int = call_client(call)
        except KafkaException as error:
            reason = error.args[0].str()
        except SystemError as error:  # confluent-kafka 2.16 breaks off at a fatal error
            reason = str(error)
        else:
            return left
        self._end(reason)
        return 0

    @staticmethod
    def _end(reason: str) -> None:
        why = f"the Kafka client can send no more ({reason}): this process ends, and must be started again"
        # The Kafka client has failed for good; the process ends.
        log.error("producer.failed", why=why)
        end_process(why)

    def post(self, record: Outgoing) -> Future[None]:
        """Enqueue a record; the future ends with its acknowledgement or with KafkaRefused.

        Raises BufferError when librdkafka's queue is full.
        """
        acked: Future[None] = Future()

        def note_delivery(error: KafkaError | None, raw: RawMessage) -> None:
            if error is None and not is_delivered(raw):
                self._lost.append((record, note_delivery))
                return
            with suppress(InvalidStateError):
                if error is None:
                    acked.set_result(None)
                else:
                    acked.set_exception(translate_error(KafkaException(error), f"producing to {record.topic}"))

        with self._watch.measure("produce"):
            self._produce(record, note_delivery)
        return acked

    def _produce(self, record: Outgoing, on_delivery: OnDelivery) -> None:
        self._producer.produce(
            record.topic,
            record.value,
            record.key or None,
            record.partition,
            headers=list(record.headers),
            on_delivery=on_delivery,
        )

    def _send_again(self) -> None:
        """Send records that may be lost again: readers drop a second copy."""
        while self._lost:
            try:
                self._produce(*self._lost[0])
            except (BufferError, KafkaException):  # its topic may be away for a moment
                return
            self._lost.popleft()

    async def send(self, records: list[Outgoing]) -> list[tuple[Outgoing, KafkaRefused]]:
        """Send records and wait for Kafka's answer to each; return the refused records with the reasons.

        If the queue is full, waits for room.
        """
        acked: list[Future[None]] = []
        for record in records:
            while True:
                try:
                    acked.append(self.post(record))
                    break
                except BufferError:
                    await asyncio.sleep(FULL_S)
        # Not gather on the futures themselves: cancelling the sender must not make an acknowledgement fail.
        answers = await asyncio.gather(
            *(asyncio.shield(asyncio.wrap_future(each)) for each in acked), return_exceptions=True
        )
        refused: list[tuple[Outgoing, KafkaRefused]] = []
        for record, answer in zip(records, answers, strict=True):
            if isinstance(answer, KafkaRefused):
                refused.append((record, answer))
            elif isinstance(answer, BaseException):
                raise answer
        return refused

    def flush(self, timeout_s: float) -> int:
        """Wait for acknowledgements; return how many records still lack theirs."""
        end = time.monotonic() + timeout_s
        while (left := self._flush_once(end) + len(self._lost)) and self._lost:
            if time.monotonic() > end:
                break
            time.sleep(FULL_S)
        return left

    def _flush_once(self, end: float) -> int:
        return self._serve(lambda: self._producer.flush(max(end - time.monotonic(), 0)))

    def close(self) -> None:
        """Stop; give up records that are not acknowledged yet."""
        self._stop.set()
        self._thread.join()
        self._producer.purge()
