"""The trainer's heartbeat: progress on `workers` during long work, while nothing else of the run moves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from headrace.infra.kafka.clients import open_producer
from headrace.infra.run.run import Run
from headrace.schemas import codec
from headrace.schemas.ids import now_ms
from headrace.schemas.records import WorkerStatus


@contextmanager
def open_heartbeat(run: Run, policy_variant: str, state: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes a heartbeat: a sentence on how far the trainer is, and `state`, what it is doing.

    At the end a null record deletes the heartbeat: from then on the versions show that the trainer works.
    """
    opened: list[Producer] = []

    def beat(detail: str) -> None:
        if not opened:
            opened.append(open_producer(run.connection, f"train.{policy_variant}"))
        _write(opened[0], run, policy_variant, state, detail)

    try:
        yield beat
    finally:
        for producer in opened:
            producer.produce(run.topics.workers, None, _build_key(policy_variant), 0)
            producer.flush(5)


def _write(producer: Producer, run: Run, policy_variant: str, state: str, detail: str) -> None:
    name, now = _build_key(policy_variant), now_ms()
    status = WorkerStatus(
        run_id=run.run_id, worker=name.decode(), state=state, detail=detail, pid=os.getpid(), updated_ms=now
    )
    producer.produce(run.topics.workers, codec.encode(status), name, 0)
    producer.poll(0)


def _build_key(policy_variant: str) -> bytes:
    return f"train-{policy_variant}".encode()
