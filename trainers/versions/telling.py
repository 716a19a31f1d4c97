"""What a trainer says on `workers` while it does something long and nothing else of the run moves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from headrace.infra.kafka.clients import open_producer
from headrace.infra.run.run import Run
from headrace.schemas import codec
from headrace.schemas.records import WorkerStatus


@contextmanager
def told(run: Run, policy: str, state: str) -> Iterator[Callable[[str], None]]:
    """Open a way to say, in a sentence, how far the trainer is; `state` is the word for what it does.

    Nothing of it is left on the topic at the end: a trainer at work is told of by its versions.
    """
    opened: list[Producer] = []

    def tell(detail: str) -> None:
        if not opened:
            opened.append(open_producer(run.connection, f"train.{policy}"))
        _write(opened[0], run, policy, (state, detail))

    try:
        yield tell
    finally:
        for producer in opened:
            producer.produce(run.topics.workers, None, _name(policy), 0)
            producer.flush(5)


def _write(producer: Producer, run: Run, policy: str, said: tuple[str, str]) -> None:
    name, now = _name(policy), time.time_ns() // 1_000_000
    status = WorkerStatus(
        run_id=run.run_id, worker=name.decode(), state=said[0], detail=said[1], pid=os.getpid(), updated_ms=now
    )
    producer.produce(run.topics.workers, codec.encode(status), name, 0)
    producer.poll(0)


def _name(policy: str) -> bytes:
    return f"train-{policy}".encode()
