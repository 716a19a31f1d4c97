"""What a transactional writer makes of errors; a stand-in for librdkafka's producer raises them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from fatal import find_raised, raise_no_exception
from patience import PATIENCE_S
from structlog.testing import capture_logs

from headrace.infra.environment import END_REPORT_VARIABLE
from headrace.infra.kafka import call_watch, transaction_ends, transactions
from headrace.infra.kafka.clients import Connection, Fenced, KafkaAway, KafkaRefused, Outgoing, translate_error
from headrace.infra.kafka.repeated_aborts import MOST_ABORTS
from headrace.infra.kafka.transactions import Aborted, GroupOffsets, TransactionalWriter
from headrace.infra.process.end_report import read_end
from headrace.infra.process.signals import MustRestart


class Failing:
    """Fails the next calls with these codes, then obeys."""

    def __init__(self) -> None:
        self.codes: list[int | KafkaError] = []
        self.calls = 0
        self.breaks = False
        self.delivered: list[tuple[int | None, int | None]] = []
        """Error and offset of the next delivery reports; later ones are good."""
        self.reports: list[Callable[[KafkaError | None, Any], None]] = []
        self.looks: list[dict[str, set[int]]] = []
        """Topics and their partitions at the next looks; the last one stays. None at all: the broker is away."""

    def _call(self, *_given: object, **_named: object) -> int:
        self.calls += 1
        if self.codes:
            raise KafkaException(code if isinstance(code := self.codes.pop(0), KafkaError) else KafkaError(code))
        return 0

    begin_transaction = commit_transaction = abort_transaction = _call

    def produce(self, *_given: object, on_delivery: Callable[[KafkaError | None, Any], None], **_named: object) -> None:
        self.reports.append(on_delivery)

    def flush(self, _timeout_s: float) -> int:
        if self.breaks:
            raise SystemError("<method 'flush'> returned NULL without setting an exception")
        while self.reports:
            code, offset = self.delivered.pop(0) if self.delivered else (None, 7)
            self.reports.pop(0)(
                None if code is None else KafkaError(code),
                SimpleNamespace(offset=lambda at=offset: at, partition=lambda: 0),
            )
        return 0

    def purge(self, **_which: bool) -> None:
        pass

    def list_topics(self, timeout: float) -> Any:
        if not self.looks:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        assert timeout > 0
        seen = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return SimpleNamespace(
            topics={name: SimpleNamespace(partitions=dict.fromkeys(has)) for name, has in seen.items()}
        )


@pytest.fixture
def producer() -> Failing:
    return Failing()


class Commits:
    """Notes what `LastCommit` is told, and finds what it is given."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.hanging: list[tuple[str, int]] = []

    def begin(self) -> None:
        self.told.append("begin")

    def note_record(self, topic: str, partition: int, offset: int) -> None:
        self.told.append(f"{topic}[{partition}]@{offset}")

    def note_consumer_offsets(self) -> None:
        self.told.append("offsets")

    def note_commit(self) -> None:
        self.told.append("commit")

    def find_hanging(self) -> list[tuple[str, int]]:
        return self.hanging

    def can_hang(self) -> bool:
        return bool(self.hanging)


@pytest.fixture(autouse=True)
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    found = Commits()
    monkeypatch.setattr(transaction_ends, "LastCommit", lambda _connection: found)
    return found


class Aborts:
    """Notes the partitions of aborted transactions, and the last offset that is known there; they hang if `hang`."""

    def __init__(self) -> None:
        self.noted: dict[tuple[str, int], int] = {}
        self.hang = False

    def note_abort(self, newest: dict[tuple[str, int], int]) -> None:
        self.noted |= newest

    def wait_until_read(self) -> list[tuple[str, int]]:
        return sorted(self.noted) if self.hang else []

    def forget(self) -> None:
        self.noted = {}


@pytest.fixture(autouse=True)
def aborts(monkeypatch: pytest.MonkeyPatch) -> Aborts:
    found = Aborts()
    monkeypatch.setattr(transaction_ends, "LastAbort", lambda _connection, _last_commit: found)
    return found


@pytest.fixture
def writer(producer: Failing, monkeypatch: pytest.MonkeyPatch) -> Iterator[TransactionalWriter]:
    monkeypatch.setattr(transactions, "open_transactional_producer", lambda *_, **__: producer)
    with closing(TransactionalWriter(Connection("nowhere:1"), "run.test")) as found:
        yield found


def test_after_a_commit_that_hangs_nothing_more_is_written(
    writer: TransactionalWriter, producer: Failing, commits: Commits
) -> None:
    writer.begin()
    writer.produce([Outgoing("t", b"x", partition=3), Outgoing("t", b"y")])
    writer.flush()
    commits.hanging = [("t", 3)]
    writer.refuse_hanging_commit()  # not in the middle of a transaction
    writer.commit()
    assert commits.told == ["begin", "t[3]@7", "t[0]@7", "commit"]
    calls = producer.calls
    with pytest.raises(MustRestart, match=r"has not written the end of the last commit to t\[3\], so readers wait"):
        writer.refuse_hanging_commit()
    with pytest.raises(MustRestart):
        writer.begin()
    assert producer.calls == calls


def test_after_an_abort_that_hangs_nothing_more_is_written_as_the_next_commit_would_commit_it(
    writer: TransactionalWriter, producer: Failing, aborts: Aborts
) -> None:
    aborts.hang = True
    writer.begin()
    writer.produce([Outgoing("t", b"committed", partition=1)])
    writer.commit()
    writer.begin()
    writer.produce([Outgoing("t", b"y", partition=2), Outgoing("t", b"y", partition=2)])
    producer.delivered = [(None, 8), (None, 7)]
    writer.flush()
    producer.delivered = [(KafkaError._MSG_TIMED_OUT, None), (KafkaError._MSG_TIMED_OUT, None)]
    writer.produce([Outgoing("t", b"undelivered", partition=3), Outgoing("u", b"undelivered, where Kafka says")])
    with pytest.raises(Aborted):
        writer.commit()
    assert aborts.noted == {("t", 2): 8, ("t", 3): -1, ("u", 0): -1}
    calls = producer.calls
    with pytest.raises(MustRestart, match=r"has not written the end of the last abort to t\[2\], t\[3\], u\[0\], so"):
        writer.begin()
    aborts.hang = False
    with pytest.raises(MustRestart):
        writer.begin()
    assert producer.calls == calls


def test_what_a_start_aborts_for_others_is_not_waited_for(
    producer: Failing, aborts: Aborts, monkeypatch: pytest.MonkeyPatch
) -> None:
    aborts.hang = True
    monkeypatch.setattr(transactions, "open_transactional_producer", lambda *_, **__: producer)
    monkeypatch.setattr(transactions, "find_held_back", lambda *_: [("s", 0), ("t", 0), ("t", 1)])
    with closing(TransactionalWriter(Connection("nowhere:1"), "run.test", ["s", "t"])) as writer:
        writer.begin()


def test_a_start_sweeps_what_it_may_write_to_and_tells_what_it_may_not(
    producer: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "open_transactional_producer", lambda *_, **__: producer)
    monkeypatch.setattr(transactions, "find_held_back", lambda *_: [("s", 0), ("t", 0), ("t", 1)])
    producer.delivered = [(KafkaError.TOPIC_AUTHORIZATION_FAILED, None)]
    with capture_logs() as logs, closing(TransactionalWriter(Connection("nowhere:1"), "run.test", ["s", "t"])):
        pass
    refused, swept = logs
    assert (refused["event"], swept["event"]) == ("transaction.not_swept", "transaction.swept")
    assert refused["why"].startswith("delivering s 'swept' of 0 bytes: Kafka answers TOPIC_AUTHORIZATION_FAILED")
    assert swept["partitions"] == "t[0], t[1]"


def test_a_coordinator_that_is_away_is_waited_for(writer: TransactionalWriter, producer: Failing) -> None:
    writer.begin()
    producer.codes = [KafkaError._WAIT_COORD, KafkaError._TIMED_OUT, KafkaError.COORDINATOR_NOT_AVAILABLE]
    writer.commit()

    assert producer.calls == 1 + 4


FATAL = [
    KafkaError(code, "fatal", True)
    for code in (
        KafkaError.INVALID_TXN_STATE,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
]
"""As the real client reports them."""


@pytest.mark.parametrize("code", [KafkaError.INVALID_TXN_STATE, KafkaError._STATE, *FATAL])
def test_a_producer_that_disagrees_with_the_broker_is_built_anew(
    code: int | KafkaError, writer: TransactionalWriter, producer: Failing
) -> None:
    writer.begin()
    producer.codes = [code]
    with pytest.raises(MustRestart, match="goes on with a new producer, from what is committed"):
        writer.abort()


@pytest.mark.parametrize("is_fatal", [False, True])
@pytest.mark.parametrize(("open_s", "exit_code"), [(0.0, 76), (11.0, 75)])
def test_a_fenced_process_ends_and_one_that_only_was_too_slow_is_no_failure(
    open_s: float, exit_code: int, is_fatal: bool, writer: TransactionalWriter, producer: Failing
) -> None:
    writer.begin()
    writer._begun_at -= open_s
    producer.codes = [KafkaError(KafkaError.PRODUCER_FENCED, "", is_fatal)]
    with pytest.raises(Fenced) as caught:
        writer.commit()

    assert caught.value.exit_code == exit_code


def test_a_client_that_breaks_off_without_a_reason_is_asked_for_it(
    writer: TransactionalWriter, producer: Failing
) -> None:
    writer.begin()
    producer.breaks, producer.codes = True, [KafkaError.PRODUCER_FENCED]
    with pytest.raises(Fenced, match="delivering records: another process has taken over"):
        writer.commit()


def test_a_producer_that_was_fenced_while_nobody_called_it_says_so_when_it_is_given_a_record(
    writer: TransactionalWriter, producer: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise KafkaException(KafkaError(KafkaError._FATAL, "Unable to produce message: Local: Fatal error"))

    writer.begin()
    monkeypatch.setattr(producer, "produce", refuse)
    producer.codes = [KafkaError(KafkaError._FENCED, "", True)]
    with pytest.raises(Fenced, match=r"producing t\.tasks 'sums:7'.*: another process has taken over"):
        writer.produce([Outgoing("t.tasks", b"four", b"sums:7")])


def write(writer: TransactionalWriter) -> None:
    writer.produce([Outgoing("t", b"x")])
    writer.commit()


@pytest.mark.parametrize("is_full", [False, True])
def test_a_fatal_error_that_the_client_raises_as_no_exception_is_one(
    is_full: bool, writer: TransactionalWriter, producer: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen once: it went through every `except` and ended the process with a traceback."""

    def refuse(*_: object, **__: object) -> None:
        raise BufferError

    def fence(_timeout_s: float) -> None:
        raise_no_exception(KafkaError(KafkaError._FENCED, "fenced by a newer instance", True))

    for name in ("flush", "poll"):
        monkeypatch.setattr(producer, name, fence, raising=False)
    if is_full:
        monkeypatch.setattr(producer, "produce", refuse)
    writer.begin()
    raised = find_raised(lambda: write(writer))
    assert isinstance(raised, Fenced)
    assert "another process has taken over" in str(raised)


def test_a_client_that_breaks_off_and_has_no_reason_has_its_transaction_aborted(
    writer: TransactionalWriter, producer: Failing, aborts: Aborts
) -> None:
    writer.begin()
    writer.produce([Outgoing("t", b"x", partition=3)])
    producer.breaks = True
    with pytest.raises(Aborted):
        writer.commit()

    assert aborts.noted == {("t", 3): -1}
    assert producer.calls == 2, "one to begin, one to abort"


@pytest.mark.parametrize(
    ("report", "raised"),
    [
        ((KafkaError.MSG_SIZE_TOO_LARGE, None), KafkaRefused),
        ((KafkaError.TOPIC_AUTHORIZATION_FAILED, None), KafkaRefused),
        ((KafkaError._MSG_TIMED_OUT, None), Aborted),
        ((KafkaError._PURGE_INFLIGHT, None), Aborted),
        ((KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, None), Aborted),
        ((None, None), Aborted),
    ],
    ids=["too large", "no right", "timed out", "purged", "out of order", "implicit"],
)
def test_a_record_that_is_not_delivered_aborts_and_what_is_refused_is_no_pause(
    report: tuple[int | None, int | None], raised: type[Exception], writer: TransactionalWriter, producer: Failing
) -> None:
    writer.begin()
    writer.produce([Outgoing("t.tasks", b"four", b"sums:7"), Outgoing("t.tasks", b"good")])
    producer.delivered = [report]
    with pytest.raises(raised, match=r"t\.tasks 'sums:7' of 4 bytes"):
        writer.commit()

    assert producer.calls == 2, "one to begin, one to abort"


@pytest.mark.parametrize("purged", [KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT])
@pytest.mark.parametrize(
    ("refused", "remedy"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, r"raise the topic's max\.message\.bytes"),
        (KafkaError.INVALID_TIMESTAMP, r"raise the topic's message\.timestamp\.before\.max\.ms"),
    ],
)
def test_a_refused_record_is_the_reason_also_where_those_purged_with_it_report_first(
    purged: int, refused: int, remedy: str, writer: TransactionalWriter, producer: Failing
) -> None:
    """Else the turn is done again for ever, and nobody hears which record is refused."""
    writer.begin()
    writer.produce(
        [
            Outgoing("t.tasks", b"four", b"sums:7"),
            Outgoing("t.tasks", b"large", b"sums:8"),
            Outgoing("t.tasks", b"four", b"sums:9"),
        ]
    )
    producer.delivered = [(purged, None), (refused, None), (purged, None)]
    with pytest.raises(
        KafkaRefused, match=rf"'sums:8' of 5 bytes: Kafka answers .*: {remedy}.*, then give the same command again"
    ):
        writer.commit()


@pytest.mark.parametrize(
    ("looks", "raised"),
    [
        ([], Aborted),
        ([{"t.tasks": {0, 1}}], Aborted),
        ([{}, {"t.state": {0}}, {"t.tasks": {0, 1}}], Aborted),
        ([{"t.state": {0}}], KafkaRefused),
        ([{"t.tasks": {0}}], KafkaRefused),
    ],
    ids=["Kafka is away", "there", "comes back", "gone", "has fewer partitions"],
)
def test_a_topic_that_stays_away_ends_the_component_and_one_that_comes_back_is_a_pause(
    looks: list[dict[str, set[int]]],
    raised: type[Exception],
    writer: TransactionalWriter,
    producer: Failing,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactions, "TOPIC_LOOK_EVERY_S", 0.001)
    monkeypatch.setattr(transactions, "GONE_S", 0.05 if raised is KafkaRefused else 30.0)
    producer.looks = looks
    writer.begin()
    writer.produce([Outgoing("t.tasks", b"four", b"sums:7", partition=1)])
    producer.delivered = [(KafkaError._MSG_TIMED_OUT, None)]
    with pytest.raises(raised, match=r"t\.tasks\[1\] was deleted" if raised is KafkaRefused else "timed out"):
        writer.commit()


def test_a_topic_that_is_gone_is_the_reason_also_where_the_broker_refuses_to_abort(
    writer: TransactionalWriter, producer: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Kafka 4.3 does: it then counts as fenced, and its successor would be fenced in the same way, for ever."""
    monkeypatch.setattr(transactions, "GONE_S", 0.0)
    producer.looks = [{}]
    writer.begin()
    writer.produce([Outgoing("t.tasks", b"four", b"sums:7")])
    producer.delivered, producer.codes = [(KafkaError._MSG_TIMED_OUT, None)], [KafkaError.PRODUCER_FENCED]
    with pytest.raises(KafkaRefused, match=r"t\.tasks was deleted"):
        writer.commit()


def test_a_call_that_never_returns_ends_the_process_as_no_failure_of_its_own(
    producer: Failing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    exits, returns = SimpleQueue[int](), threading.Event()

    def hang(_timeout_s: float) -> None:
        monkeypatch.setattr(call_watch, "CALL_STUCK_S", 0.01)  # other calls may take as long as a busy machine needs
        returns.wait(PATIENCE_S)

    monkeypatch.setenv(END_REPORT_VARIABLE, str(tmp_path / "train.end"))
    monkeypatch.setattr(transactions, "open_transactional_producer", lambda *_, **__: producer)
    monkeypatch.setattr(call_watch, "WATCH_EVERY_S", 0.001)
    monkeypatch.setattr(os, "_exit", exits.put)
    monkeypatch.setattr(producer, "commit_transaction", hang)
    with closing(TransactionalWriter(Connection("nowhere:1"), "run.test")) as writer:
        writer.begin()
        committing = threading.Thread(target=writer.commit)
        committing.start()
        try:
            assert exits.get(timeout=PATIENCE_S) == os.EX_TEMPFAIL
            told = read_end(tmp_path / "train.end")
            assert told is not None
            assert (told.exit_code, told.lines) == (
                75,
                ["error: committing a transaction has not returned for 0.01 s: this process ends"],
            )
        finally:
            returns.set()
            committing.join()


def test_an_error_that_aborts_every_transaction_is_told_and_one_that_passes_is_waited_for(
    writer: TransactionalWriter, producer: Failing
) -> None:
    def abort_by(code: int) -> None:
        writer.begin()
        writer.produce([Outgoing("t.tasks", b"four", b"sums:7")])
        producer.delivered = [(code, None)]
        writer.commit()

    def abort_repeatedly(count: int, *codes: int) -> None:
        for _ in range(count):
            for code in codes:
                with pytest.raises(Aborted):
                    abort_by(code)

    abort_repeatedly(MOST_ABORTS - 1, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
    writer.begin()
    writer.commit()
    abort_repeatedly(MOST_ABORTS - 1, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, KafkaError._MSG_TIMED_OUT)
    with pytest.raises(
        KafkaRefused, match=r"OUT_OF_ORDER_SEQUENCE_NUMBER: .* has aborted 30 transactions in a row: look in the logs"
    ):
        abort_by(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
    abort_repeatedly(2 * MOST_ABORTS, KafkaError._MSG_TIMED_OUT)


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._WAIT_COORD,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError._TRANSPORT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.CONCURRENT_TRANSACTIONS,
    ],
)
def test_errors_that_time_heals_are_a_kafka_that_is_away(code: int) -> None:
    assert isinstance(translate_error(KafkaException(KafkaError(code)), "asking"), KafkaAway)


DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN)


class Away:
    """Producers of one writer, opened one after the other, and what hears the reports of each."""

    def __init__(self) -> None:
        self.producers: list[Failing] = []
        self.report: list[Callable[[KafkaError], None]] = []
        self.failure: Exception | None = None

    def open(
        self, _connection: Connection, _id: str, _timeout_s: float, on_report: Callable[[KafkaError], None]
    ) -> Any:
        if self.failure is not None:
            raise self.failure
        self.producers.append(Failing())
        self.report.append(on_report)
        return self.producers[-1]


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Away:
    made = Away()
    monkeypatch.setattr(transactions, "open_transactional_producer", made.open)
    monkeypatch.setattr(Failing, "send_offsets_to_transaction", Failing._call, raising=False)
    monkeypatch.setattr(Failing, "poll", lambda *_: 0, raising=False)
    return made


@pytest.fixture
def sender(away: Away) -> Iterator[TransactionalWriter]:
    """A writer that has sent offsets once, and is about to send them again."""
    assert not away.producers
    with closing(TransactionalWriter(Connection("nowhere:1"), "run.test")) as found:
        begin_with_record(found)
        found.send_offsets(NONE)
        found.commit()
        begin_with_record(found)
        yield found


def begin_with_record(writer: TransactionalWriter) -> None:
    writer.begin()
    writer.produce([Outgoing("t", b"x", partition=3)])
    writer.flush()


NONE = GroupOffsets([], None)


def test_after_kafka_was_away_offsets_are_sent_by_a_new_producer_as_the_old_one_might_wait_for_ever(
    away: Away, sender: TransactionalWriter, aborts: Aborts
) -> None:
    away.report[0](DOWN)
    old = sender._contact
    with pytest.raises(Aborted, match="Kafka was away"):
        sender.send_offsets(NONE)
    assert aborts.noted == {("t", 3): 7}
    assert sender._contact is not old
    calls = away.producers[0].calls
    sender.begin()
    sender.send_offsets(NONE)
    sender.commit()
    assert (away.producers[0].calls, away.producers[1].calls) == (calls, 3)


def test_a_broker_among_others_that_is_down_costs_no_transaction(away: Away, sender: TransactionalWriter) -> None:
    away.report[0](KafkaError(KafkaError._TRANSPORT))
    sender.send_offsets(NONE)
    assert len(away.producers) == 1


@pytest.mark.parametrize("case", ["without records", "after a commit that may hang"])
def test_a_transaction_that_cannot_be_aborted_safely_is_not(
    away: Away, sender: TransactionalWriter, commits: Commits, case: str
) -> None:
    if case == "without records":
        sender.commit()
        sender.begin()
    else:
        commits.hanging = [("t", 3)]
    away.report[0](DOWN)
    sender.send_offsets(NONE)
    assert len(away.producers) == 1
    commits.hanging = []
    sender.commit()
    begin_with_record(sender)
    sender.send_offsets(NONE)
    assert len(away.producers) == 1, "it has sent offsets since, so it knows the coordinator"


def test_who_was_away_and_has_a_successor_does_not_take_over_again(away: Away, sender: TransactionalWriter) -> None:
    away.report[0](DOWN)
    away.producers[0].codes = [KafkaError(KafkaError.PRODUCER_FENCED, "fenced", True)]
    with pytest.raises(Fenced):
        sender.send_offsets(NONE)
    assert len(away.producers) == 1


def test_a_new_producer_that_cannot_be_opened_is_left_to_a_new_start(away: Away, sender: TransactionalWriter) -> None:
    away.report[0](DOWN)
    away.failure = KafkaAway("no broker answers")
    with pytest.raises(MustRestart, match="no broker answers"):
        sender.send_offsets(NONE)


def test_a_client_tells_its_owner_what_it_reports() -> None:
    told: list[KafkaError] = []
    Connection("nowhere:1").config(on_report=told.append)["error_cb"](DOWN)
    assert told == [DOWN]
