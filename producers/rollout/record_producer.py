"""The worker's producer: idempotent, never giving up; a thread of its own takes every acknowledgement."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import Message as RawMessage

from headrace.infra.kafka.clients import Connection, Outgoing, open_producer, translate
from headrace.infra.stopwatch import Stopwatch

POLL_S = 0.1
FULL_S = 0.05


class RecordProducer:
    """Sends records. `message.timeout.ms = 0`: a broker that is away is waited for, and records stay in order.

    Args:
        connection: The cluster.
        name: Client id.
        watch: Of the thread that sends; counts `produce`.
    """

    def __init__(self, connection: Connection, name: str, watch: Stopwatch) -> None:
        self._producer = open_producer(connection, name, message_timeout_ms=0)
        self._watch = watch
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="producer-poll", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            self._producer.poll(POLL_S)

    def post(self, record: Outgoing) -> Future[None]:
        """Hand a record over; the future ends with its acknowledgement, or with KafkaRefused.

        Raises BufferError when librdkafka's queue is full.
        """
        acked: Future[None] = Future()

        def delivered(error: KafkaError | None, _raw: RawMessage) -> None:
            with suppress(InvalidStateError):
                if error is None:
                    acked.set_result(None)
                else:
                    acked.set_exception(translate(KafkaException(error), f"producing to {record.topic}"))

        with self._watch.measure("produce"):
            self._producer.produce(
                record.topic,
                record.value,
                record.key or None,
                record.partition,
                headers=list(record.headers),
                on_delivery=delivered,
            )
        return acked

    async def send(self, records: list[Outgoing]) -> None:
        """Hand records over and wait until all are acknowledged, waiting for room where the queue is full."""
        acked: list[Future[None]] = []
        for record in records:
            while True:
                try:
                    acked.append(self.post(record))
                    break
                except BufferError:
                    await asyncio.sleep(FULL_S)
        # Not gather on the futures themselves: cancelling the sender must not make an acknowledgement fail.
        await asyncio.gather(*(asyncio.shield(asyncio.wrap_future(each)) for each in acked))

    def flush(self, timeout_s: float) -> int:
        """Wait for acknowledgements; return how many records still lack theirs."""
        return self._producer.flush(timeout_s)

    def close(self) -> None:
        """Stop; what is not acknowledged by now is given up."""
        self._stop.set()
        self._thread.join()
        self._producer.purge()
