"""A commit whose end Kafka never writes is found; dictionaries stand for its offsets."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from headrace.infra.kafka import last_commit
from headrace.infra.kafka.clients import Connection, KafkaAway, KafkaRefused
from headrace.infra.kafka.last_commit import (
    LOOK_AFTER_FAILURE_S,
    LOOK_EVERY_S,
    MISSING_S,
    QUIET_S,
    LastAbort,
    LastCommit,
)
from headrace.infra.kafka.run_loop import Component, run_loop
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.process.signals import MustRestart
from headrace.infra.stopwatch import Stopwatch

ONE, TWO = ("run.tasks", 0), ("run.state", 3)


@dataclass
class Log:
    """How far readers of two partitions get, and a clock in seconds."""

    stable: dict[PartitionId, int] = field(default_factory=lambda: {ONE: 10, TWO: 20})
    ends: dict[PartitionId, int] = field(default_factory=lambda: {ONE: 12, TWO: 22})
    later: list[tuple[PartitionId, int]] = field(default_factory=list)
    """How far readers get next, at each look that waits."""
    now_s: float = 1000.0
    looks: int = 0
    is_away: bool = False


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made = Log()

    def read_stable(_connection: Connection, wanted: dict[PartitionId, int]) -> dict[PartitionId, int]:
        made.looks += 1
        if made.is_away:
            raise KafkaAway("no answer")
        return {one: made.stable[one] for one in wanted}

    def sleep(seconds: float) -> None:
        made.now_s += seconds
        if made.later:
            partition_id, offset = made.later.pop(0)
            made.stable[partition_id] = offset
            made.ends[partition_id] += 5  # others go on to write

    monkeypatch.setattr(last_commit, "fetch_stable_ends", read_stable)
    monkeypatch.setattr(last_commit, "fetch_end_offsets", lambda _, wanted: {one: made.ends[one] for one in wanted})
    monkeypatch.setattr(
        last_commit, "list_partitions", lambda _, topics: [one for one in made.ends if one[0] in topics]
    )
    monkeypatch.setattr(last_commit.time, "monotonic", lambda: made.now_s)
    monkeypatch.setattr(last_commit.time, "sleep", sleep)
    return made


def commit(last: LastCommit, *, with_consumer_offsets: bool = False) -> None:
    """Commit two records on each partition, from offset 10 and 20 on."""
    last.begin()
    for topic, partition, first in ((*ONE, 10), (*TWO, 20)):
        last.note_record(topic, partition, first + 1)
        last.note_record(topic, partition, first)
    if with_consumer_offsets:
        last.note_consumer_offsets()
    last.note_commit()


def hanging_after(last: LastCommit, log: Log, seconds: float) -> list[PartitionId]:
    log.now_s += seconds
    return last.find_hanging()


@pytest.fixture
def last(log: Log) -> LastCommit:
    made = LastCommit(Connection("nowhere:1"))
    commit(made)
    return made


def test_a_commit_hangs_once_readers_have_waited_for_all_of_it_longer_than_others_may_have_one_open(
    last: LastCommit, log: Log
) -> None:
    assert hanging_after(last, log, QUIET_S - 1) == []
    assert log.looks == 0
    assert hanging_after(last, log, 1) == []
    assert hanging_after(last, log, LOOK_EVERY_S / 2) == []
    assert log.looks == 1
    assert hanging_after(last, log, MISSING_S - LOOK_EVERY_S / 2 - 1) == []
    assert hanging_after(last, log, LOOK_EVERY_S) == [TWO, ONE]


def test_a_commit_of_which_something_can_be_read_has_its_end_and_is_looked_at_no_more(
    last: LastCommit, log: Log
) -> None:
    log.stable[TWO] = 21
    assert hanging_after(last, log, QUIET_S) == []
    log.stable[TWO] = 0
    assert hanging_after(last, log, 10 * MISSING_S) == []
    assert log.looks == 1


def test_an_open_transaction_is_none_that_hangs(last: LastCommit, log: Log) -> None:
    last.begin()
    last.note_record(*ONE, 12)
    assert hanging_after(last, log, QUIET_S) == []
    log.stable[ONE] = 12
    assert hanging_after(last, log, MISSING_S) == [], "the commit before it can be read"


def test_a_commit_with_consumer_offsets_is_never_found_as_their_end_cannot_be_seen(last: LastCommit, log: Log) -> None:
    commit(last, with_consumer_offsets=True)
    assert hanging_after(last, log, QUIET_S) == []
    assert hanging_after(last, log, MISSING_S) == []
    assert log.looks == 0


def test_a_cluster_that_is_away_says_nothing_and_the_wait_begins_anew(last: LastCommit, log: Log) -> None:
    assert hanging_after(last, log, QUIET_S) == []
    log.is_away = True
    assert hanging_after(last, log, MISSING_S) == []
    log.is_away = False
    assert hanging_after(last, log, LOOK_AFTER_FAILURE_S) == []
    assert hanging_after(last, log, MISSING_S) == [TWO, ONE]


THREE = ("run.state", 4)


@pytest.fixture
def abort(last: LastCommit, log: Log) -> LastAbort:
    log.ends[THREE] = log.stable[THREE] = 30
    return LastAbort(Connection("nowhere:1"), last)


def test_readers_must_get_past_all_that_is_there_when_an_abort_is_looked_at(abort: LastAbort, log: Log) -> None:
    assert abort.wait_until_read() == []
    abort.note_abort({ONE: 11})
    abort.note_abort({TWO: 21, ONE: -1})
    log.later = [(ONE, 12), (TWO, 21)]
    before = log.now_s
    assert abort.wait_until_read() == [TWO]
    assert MISSING_S <= log.now_s - before < MISSING_S + 1
    log.stable |= {ONE: log.ends[ONE], TWO: log.ends[TWO] - 1}
    log.later = [(TWO, log.ends[TWO])]
    assert abort.wait_until_read() == []
    log.stable[TWO] = 0
    assert abort.wait_until_read() == [], "it is looked at no more"
    abort.note_abort({TWO: 21})
    abort.forget()
    assert abort.wait_until_read() == []


def test_a_broker_that_has_just_started_and_names_too_low_an_end_or_no_topic_does_not_end_the_wait(
    abort: LastAbort, log: Log
) -> None:
    abort.note_abort({TWO: 21, THREE: 29})
    log.stable[TWO] = log.ends[TWO] = 0
    assert abort.wait_until_read() == [TWO]
    end = log.ends.pop(TWO)
    assert abort.wait_until_read() == []
    log.ends[TWO] = end
    assert abort.wait_until_read() == [TWO]


def test_a_partition_that_is_not_where_kafka_lists_it_is_looked_at_again(
    abort: LastAbort, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> dict[PartitionId, int]:
        raise KafkaRefused("UNKNOWN_TOPIC_OR_PART")

    abort.note_abort({TWO: 21})
    with monkeypatch.context() as patch:
        patch.setattr(last_commit, "fetch_end_offsets", refuse)
        with pytest.raises(KafkaAway, match="UNKNOWN_TOPIC_OR_PART"):
            abort.wait_until_read()
    assert abort.wait_until_read() == [TWO]


def test_where_the_commit_before_holds_readers_back_the_next_one_may_end_it_unless_it_would_commit_aborted_records(
    abort: LastAbort, last: LastCommit, log: Log
) -> None:
    """Else a curator loses groups: its successor aborts them, but their offsets may be committed."""
    abort.note_abort({TWO: -1})
    assert abort.wait_until_read() == []
    last.begin()
    last.note_record(*THREE, 29)
    last.note_commit()
    abort.note_abort({TWO: -1})
    assert abort.wait_until_read() == [], "a later commit did not touch it"
    abort.note_abort({TWO: 21})
    assert abort.wait_until_read() == [TWO]
    abort.forget()
    abort.note_abort({TWO: -1})
    log.stable[TWO] = 21
    assert abort.wait_until_read() == [TWO], "readers got past the commit"


def test_a_component_whose_last_commit_hangs_does_no_further_turn() -> None:
    def refuse() -> None:
        raise MustRestart("it hangs")

    writer = cast("TransactionalWriter", SimpleNamespace(component="feed", refuse_hanging_commit=refuse))
    with pytest.raises(MustRestart):
        run_loop(cast("Component", None), writer, threading.Event(), Stopwatch())


def test_a_commit_may_hang_while_readers_wait_for_its_end_or_nobody_knows(log: Log) -> None:
    commit = LastCommit(Connection("nowhere:1"))
    assert not commit.can_hang()
    commit.begin()
    commit.note_record(*ONE, 10)
    commit.note_record(*TWO, 20)
    commit.note_consumer_offsets()
    commit.note_commit()
    log.stable = {ONE: 11, TWO: 20}
    assert commit.can_hang()
    log.stable = {ONE: 11, TWO: 21}
    assert not commit.can_hang()
    log.is_away = True
    assert commit.can_hang()


def test_a_commit_of_offsets_alone_can_hang_unseen_until_one_with_records_follows(log: Log) -> None:
    commit = LastCommit(Connection("nowhere:1"))
    commit.begin()
    commit.note_consumer_offsets()
    commit.note_commit()
    assert commit.can_hang()
    commit.begin()
    commit.note_record(*ONE, 10)
    commit.note_consumer_offsets()
    commit.note_commit()
    log.stable = {ONE: 11}
    assert not commit.can_hang()
