"""A run whose audit does not close: the same command says so, and ends with an exit code of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command import headrace

from headrace.infra.kafka.clients import open_producer
from headrace.infra.kafka.topic_reader import read_all
from headrace.ops.opened_run import open_run
from headrace.schemas import codec
from headrace.schemas.records import BatchTrained

pytestmark = pytest.mark.audit


def test_a_run_that_has_come_to_its_end_fails_where_its_audit_does_not_close(tmp_path: Path) -> None:
    data = tmp_path / "run"
    sets = ("name=twice", "trainer.steps=4", "evaluate.every=2")
    words = ("up", "efficient-data/fifo", *(word for one in sets for word in ("--set", one)), "--data", data, "--plain")
    done = headrace(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    with open_run(None, data) as opened:
        run = opened.run
        [topic] = [run.topics.batches(policy) for policy in run.recipe.policies]
        *_, last = read_all(run.connection, [topic])
        producer = open_producer(run.connection, "forger")
        record = codec.decode(last.value, BatchTrained)
        forged = replace(record, version=record.version + 1)
        producer.produce(topic, codec.encode(forged), last.key, last.partition, headers=list(last.headers))
        assert producer.flush(120) == 0

    again = headrace(*words)

    assert again.returncode == 1, again.stdout + again.stderr
    assert "the audit of this run does not close" in again.stdout
    assert "doubled" in again.stdout
