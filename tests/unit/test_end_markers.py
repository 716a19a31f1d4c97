"""Which partitions wait for the end of a transaction that Kafka never writes; dictionaries stand for its offsets."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from headrace.infra.kafka import end_markers
from headrace.infra.kafka.clients import Connection, KafkaAway, Outgoing
from headrace.infra.kafka.end_markers import LOOK_EVERY_S, MISSING_S, QUIET_S, EndMarkers, PartitionId
from headrace.infra.kafka.run_loop import Component, run_loop
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.process.signals import MustRestart
from headrace.infra.stopwatch import Stopwatch

ONE, TWO = ("run.tasks", 0), ("run.state", 3)


@dataclass
class Log:
    """Offsets of two partitions, and a clock in seconds."""

    ends: dict[PartitionId, int] = field(default_factory=lambda: {ONE: 10, TWO: 20})
    stable: dict[PartitionId, int] = field(default_factory=lambda: {ONE: 10, TWO: 20})
    now_s: float = 1000.0
    looks: int = 0
    is_away: bool = False


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()

    def read_stable(_connection: Connection, wanted: list[PartitionId]) -> dict[PartitionId, int]:
        made.looks += 1
        if made.is_away:
            raise KafkaAway("no answer")
        return {one: made.stable[one] for one in wanted}

    def wait(seconds: float) -> None:
        made.now_s += seconds

    monkeypatch.setattr(end_markers, "fetch_end_offsets", lambda _, wanted: {one: made.ends[one] for one in wanted})
    monkeypatch.setattr(end_markers, "fetch_stable_ends", read_stable)
    monkeypatch.setattr(end_markers.time, "monotonic", lambda: made.now_s)
    monkeypatch.setattr(end_markers.time, "sleep", wait)
    return made


def committed(*partition_ids: PartitionId) -> EndMarkers:
    markers = EndMarkers(Connection("nowhere:1"), "run.test")
    commit(markers, *partition_ids)
    return markers


def commit(markers: EndMarkers, *partition_ids: PartitionId) -> None:
    for topic, partition in partition_ids:
        markers.note_record(Outgoing(topic, b"x", partition=partition))
    markers.note_commit()


def missing_after(markers: EndMarkers, log: Log, seconds: float) -> str:
    """Return which partitions count as waiting for an end, after some more seconds."""
    log.now_s += seconds
    try:
        markers.refuse_missing()
    except MustRestart as error:
        return str(error).partition(" transaction to ")[2].partition(", so readers")[0]
    return ""


def test_an_end_is_looked_for_once_a_partition_is_quiet_and_missing_once_every_other_transaction_timed_out(
    log: Log,
) -> None:
    markers = committed(ONE, TWO)
    log.stable[TWO] = 15
    assert missing_after(markers, log, QUIET_S - 1) == ""
    assert log.looks == 0
    assert missing_after(markers, log, 1) == ""
    assert missing_after(markers, log, LOOK_EVERY_S / 2) == ""
    assert log.looks == 1
    log.stable[ONE] = 0
    assert missing_after(markers, log, MISSING_S) == "run.state[3]", "the end on the other was seen"


def test_a_partition_on_which_others_write_without_end_is_proven_once_its_own_records_can_be_read(log: Log) -> None:
    markers = committed(ONE)
    log.stable[ONE] = 9
    assert missing_after(markers, log, QUIET_S) == ""
    log.ends[ONE], log.stable[ONE] = 500, 10
    assert missing_after(markers, log, MISSING_S) == ""


def test_a_later_transaction_gives_a_partition_its_time_again(log: Log) -> None:
    markers = committed(ONE)
    log.stable[ONE] = 9
    assert missing_after(markers, log, QUIET_S) == ""
    commit(markers, ONE)
    assert missing_after(markers, log, QUIET_S + MISSING_S - 1) == ""
    assert missing_after(markers, log, LOOK_EVERY_S) == "run.tasks[0]"


def test_a_cluster_that_is_away_says_nothing_of_ends(log: Log) -> None:
    markers = committed(ONE)
    log.is_away, log.stable[ONE] = True, 9
    assert missing_after(markers, log, QUIET_S + MISSING_S) == ""
    log.is_away = False
    assert missing_after(markers, log, LOOK_EVERY_S) == "run.tasks[0]"


def test_a_component_whose_transaction_never_ends_does_no_further_turn() -> None:
    def refuse() -> None:
        raise MustRestart("an end is missing")

    writer = cast("TransactionalWriter", SimpleNamespace(component="feed", refuse_missing_ends=refuse))
    with pytest.raises(MustRestart):
        run_loop(cast("Component", None), writer, threading.Event(), Stopwatch())


@pytest.mark.parametrize("delivered_to", [-1, 0])
def test_nothing_follows_an_aborted_transaction_without_its_end(log: Log, delivered_to: int) -> None:
    markers = EndMarkers(Connection("nowhere:1"), "run.test")
    asked = Outgoing(ONE[0], b"x", partition=0 if delivered_to < 0 else -1)
    markers.note_record(asked, delivered_to)
    log.stable[ONE] = 9
    with pytest.raises(MustRestart, match=r"has not written the end of a transaction to run\.tasks\[0\]"):
        markers.await_aborted()
    assert log.now_s - 1000 == pytest.approx(MISSING_S, abs=1)
    log.stable[ONE] = 10
    markers.await_aborted()
    log.stable[ONE] = 0
    markers.await_aborted()  # its end was seen


def test_what_is_swept_for_others_may_stay_open(log: Log) -> None:
    markers = EndMarkers(Connection("nowhere:1"), "run.test")
    markers.note_record(Outgoing(ONE[0], b"swept", partition=0))
    log.stable[ONE] = 9
    markers.forget_aborted()
    markers.await_aborted()
    assert log.looks == 0
