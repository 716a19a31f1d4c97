from __future__ import annotations

from typing import Any, cast

import pytest

from headrace.infra.kafka.clients import Connection
from headrace.infra.run.run import Run
from headrace.schemas import codec
from headrace.schemas.records import WorkerStatus
from headrace.schemas.topics import Topics
from headrace.trainers.versions import heartbeat


class Log:
    """Stands for the producer, and for the run that it writes to."""

    run_id, topics, connection = "run-1", Topics("demo"), Connection("127.0.0.1:1")

    def __init__(self) -> None:
        self.written: list[tuple[bytes | None, bytes]] = []

    def produce(self, topic: str, value: bytes | None, key: bytes, _partition: int) -> None:
        assert topic == "demo.workers"
        self.written.append((value, key))

    def poll(self, _timeout_s: float) -> None:
        pass

    def flush(self, _timeout_s: float) -> None:
        pass


def test_a_trainer_takes_its_heartbeat_back_when_the_long_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    monkeypatch.setattr(heartbeat, "open_producer", lambda *_given: log)
    run = cast("Run", cast("Any", log))

    with heartbeat.open_heartbeat(run, "solver", "resuming"):
        pass
    assert log.written == [], "nothing written, nothing to take back"

    with heartbeat.open_heartbeat(run, "solver", "warming up") as beat:
        beat("exact match 0.12")
    (said, key), end = log.written
    status = codec.decode(said or b"", WorkerStatus)
    assert (status.worker, status.state, status.detail) == ("train-solver", "warming up", "exact match 0.12")
    assert end == (None, key), "or status would show a trainer at work as a worker that has stopped"
