"""Who is blamed when workers die: the intake over the lives of its workers, on a broker made of two dicts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headrace.infra.kafka import broker_contact, clients
from headrace.infra.kafka.clients import Connection
from headrace.infra.kafka.topic_reader import PartitionId
from headrace.infra.kafka.watched_consumer import CALLS
from headrace.infra.process.signals import MustRestart
from headrace.producers.rollout.intake import task_commits, task_intake
from headrace.producers.rollout.intake.slots import Reservation, Slots
from headrace.producers.rollout.intake.started_task import StartedTask
from headrace.producers.rollout.intake.task_intake import Subscription, TaskIntake
from headrace.producers.rollout.pauses import Pauses
from headrace.schemas import codec
from headrace.schemas.records import Task

TOPIC = "t.tasks.sums"
PARTITIONS = 2
MOST_LIVES = 60
STALE = KafkaError(KafkaError.STALE_MEMBER_EPOCH)


@dataclass
class Broker:
    """What outlives a worker."""

    logs: dict[PartitionId, list[bytes]]
    committed: dict[PartitionId, tuple[int, str]] = field(default_factory=dict)


class Raw:
    """A message as librdkafka hands it over."""

    def __init__(self, partition_id: PartitionId, offset: int, value: bytes) -> None:
        self.partition_id, self._offset, self._value = partition_id, offset, value

    def __getattr__(self, name: str) -> Callable[[], Any]:
        found = {
            "topic": self.partition_id[0], "partition": self.partition_id[1], "offset": self._offset,
            "value": self._value, "key": b"", "headers": [], "timestamp": (1, 0), "error": None,
        }  # fmt: skip
        return lambda: found[name]


class Consumer:
    """One member that is given everything at its first poll."""

    def __init__(self, broker: Broker, on_commit: Callable[..., None] = lambda *_: None) -> None:
        self.broker, self.on_commit = broker, on_commit
        self.next: dict[PartitionId, int] = {}
        self.has_to_wait = lambda: True

    def subscribe(self, _topics: list[str], on_assign: Callable[..., None], **_: Any) -> None:
        self.on_assign = on_assign

    def consume(self, most: int, _timeout_s: float) -> list[Raw]:
        if not self.next:
            self.on_assign(self, [TopicPartition(*partition_id) for partition_id in self.broker.logs])
        found: list[Raw] = []
        for partition_id, log in self.broker.logs.items():
            end = min(len(log), self.next[partition_id] + most)
            found += [Raw(partition_id, offset, log[offset]) for offset in range(self.next[partition_id], end)]
            self.next[partition_id] = end
        return found

    def poll(self, _timeout_s: float) -> None:
        return None

    def committed(self, asked: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert timeout
        known = {
            partition_id: self.broker.committed.get(partition_id, (-1001, "")) for partition_id in self.broker.logs
        }
        return [TopicPartition(tp.topic, tp.partition, *known[tp.topic, tp.partition]) for tp in asked]

    def commit(self, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous, "the thread that polls waits for no answer"
        self.broker.committed |= {(tp.topic, tp.partition): (tp.offset, tp.metadata or "") for tp in offsets}
        self.on_commit(None, offsets)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.next |= {(tp.topic, tp.partition): max(tp.offset, 0) for tp in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        assert partitions

    pause = incremental_unassign = resume


class Gate:
    """Slots for so many tasks of one episode."""

    def __init__(self, room: int) -> None:
        self.slots = Slots(room)

    def try_admit(self, task: Task) -> Reservation | Literal["run_end"] | None:
        return self.slots.reserve(task.n_asked)

    def is_written(self, revision: int) -> bool:
        return False


def broker(count: int) -> Broker:
    logs: dict[PartitionId, list[bytes]] = {(TOPIC, partition): [] for partition in range(PARTITIONS)}
    for number in range(count):
        task = Task(run_id="r", stream="sums", number=number, n_asked=1, issued_ms=number)
        logs[TOPIC, number % PARTITIONS].append(codec.encode(task))
    return Broker(logs)


@dataclass
class Workers:
    """Workers, one after the other; a task takes `turns[number]` turns, and those of `killers` then kill."""

    broker: Broker
    killers: frozenset[int]
    turns: dict[int, int]
    room: int
    ends: Counter[tuple[int, str]] = field(default_factory=Counter)
    deaths: int = 0
    company: list[tuple[int, int]] = field(default_factory=list)
    """(starts before, tasks beside it) of everything that was played."""
    alone: set[int] = field(default_factory=set)
    """Numbers that were played as suspects in the newest life."""
    handed: list[StartedTask] = field(default_factory=list)
    """Everything that was started in the newest life."""
    intake: TaskIntake | None = None
    """Of the newest life."""

    def live(self, turns: int = 1000) -> bool:
        """Live one life; False when it ended by a death."""
        self.handed.clear()
        self.alone.clear()
        running: dict[int, tuple[StartedTask, int]] = {}
        gate = Gate(self.room)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(task_intake, "open_consumer", lambda *_, **given: Consumer(self.broker, given["on_commit"]))
            patch.setattr(task_commits, "COMMIT_EVERY_S", 0.0)
            member = Subscription(Connection("nowhere"), "w", "g", (TOPIC,), "r")
            started: list[StartedTask] = []
            intake = self.intake = TaskIntake(member, gate, started.append, lambda _: None, Pauses())
        consumer = cast("Consumer", intake._consumer)
        consumer.subscribe([TOPIC], on_assign=intake._on_assign)
        for _ in range(turns):
            intake.turn()
            for each in started:
                assert each.task is not None
                running[each.task.number] = (each, self.turns.get(each.task.number, 0))
            for each in started:
                assert each.task is not None
                if each.verdict == "play":
                    before = intake.owned.ledger(each.partition_id).count_starts(each.message.offset)
                    self.company.append((before, len(running) - 1))
                    self.alone |= running.keys() if (before, len(running)) == (2, 1) else set()
            self.handed += started
            started.clear()
            for number, (each, left) in list(running.items()):
                if left:
                    running[number] = (each, left - 1)
                elif each.verdict == "play" and number in self.killers:
                    self.deaths += 1
                    return False
                else:
                    del running[number]
                    self.ends[number, each.verdict] += 1
                    if each.reservation is not None:
                        each.reservation.close()
                    intake.report_done(each)
            if not running and not intake.queue:
                intake.turn()
                return True
        return True


def lives(count: int, killers: frozenset[int], turns: dict[int, int], room: int) -> Workers:
    workers = Workers(broker(count), killers, turns, room)
    for _ in range(MOST_LIVES):
        if workers.live():
            return workers
    raise AssertionError("the tasks never came to an end")


@given(
    st.integers(1, 16),
    st.frozensets(st.integers(0, 15), max_size=4),
    st.dictionaries(st.integers(0, 15), st.integers(0, 4)),
    st.integers(1, 16),
)
def test_every_killer_is_found_and_no_innocent_is_blamed(
    count: int, killers: frozenset[int], turns: dict[int, int], room: int
) -> None:
    killers = frozenset(number for number in killers if number < count)
    workers = lives(count, killers, turns, room)
    poisoned = {number for number, verdict in workers.ends if verdict == "poison"}
    assert poisoned == killers
    assert {number for number, verdict in workers.ends if verdict == "play"} == set(range(count)) - killers
    assert workers.deaths <= 3 * len(killers)
    assert all(beside == 0 for before, beside in workers.company if before == 2)


@given(
    st.integers(1, 12),
    st.frozensets(st.integers(0, 11), max_size=2),
    st.dictionaries(st.integers(0, 11), st.integers(0, 4)),
    st.integers(1, 12),
    st.lists(st.integers(1, 6), max_size=8),
)
def test_kills_from_outside_blame_nothing_but_a_suspect_that_ran_alone(
    count: int, killers: frozenset[int], turns: dict[int, int], room: int, kills: list[int]
) -> None:
    workers, blamable = Workers(broker(count), killers, turns, room), set(killers)
    for life in kills:
        workers.live(life)
        blamable |= workers.alone
    while not workers.live():
        pass
    poisoned = {number for number, verdict in workers.ends if verdict == "poison"}
    assert poisoned <= blamable
    assert {number for number, verdict in workers.ends if verdict == "play"} >= set(range(count)) - blamable


def test_killers_that_run_together_cost_fewer_than_three_deaths_each() -> None:
    workers = lives(12, frozenset({3, 7}), {}, room=12)
    assert workers.deaths == 4
    assert workers.ends[3, "poison"] == workers.ends[7, "poison"] == 1


def test_a_task_that_must_run_alone_is_not_overtaken_and_nothing_starts_beside_it() -> None:
    made = broker(6)
    made.committed = {(TOPIC, 0): (0, '{"started":"1:2"}')}  # number 2
    workers = Workers(made, frozenset(), {0: 5, 2: 3}, room=6)
    assert workers.live()
    assert workers.company[:2] == [(0, 0), (2, 0)], "0 came first; 2 waits for it, and all others for 2"
    assert sum(workers.ends.values()) == 6


def test_after_a_rebalance_the_next_owner_skips_what_is_done_and_blames_nothing_that_ran() -> None:
    made = broker(8)
    first, second = Workers(made, frozenset(), {}, 8), Workers(made, frozenset(), {}, 8)
    first.turns = {0: 900, 4: 900}  # still under way when the partition goes
    assert first.live(turns=3)
    assert sum(first.ends.values()) == 6
    assert first.intake is not None
    first.intake._on_revoke(first.intake._consumer, [TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)])
    assert {partition_id: offset for partition_id, (offset, _) in made.committed.items()} == {
        (TOPIC, 0): 0,
        (TOPIC, 1): 4,
    }
    assert second.live()
    assert second.ends == {(0, "play"): 1, (4, "play"): 1}
    assert {before for before, _ in second.company} == {0}


def test_the_end_of_a_task_counts_in_the_ownership_of_its_start_and_in_no_later_one() -> None:
    made = broker(4)
    workers = Workers(made, frozenset(), dict.fromkeys(range(4), 900), room=8)
    assert workers.live(turns=2)
    intake = workers.intake
    assert intake is not None
    partitions = [TopicPartition(*partition_id) for partition_id in made.logs]
    intake._on_lost(intake._consumer, partitions)
    intake._on_assign(intake._consumer, partitions)
    for late in list(workers.handed):
        intake.report_done(late)
    intake.turn()
    intake.turn()
    assert made.committed == dict.fromkeys(made.logs, (0, '{"started":"0:2,1:2","run":"r","by":"1c630b12"}'))
    assert len(intake.owned.running) == 4


def test_tasks_start_as_they_came_whatever_the_clocks_of_their_feeders_say() -> None:
    stamps = {number: 10**12 - number for number in range(12)}
    found = broker(0)
    for number, issued_ms in stamps.items():
        task = Task(run_id="r", stream="sums", number=number, n_asked=1, issued_ms=issued_ms)
        found.logs[TOPIC, number % PARTITIONS].append(codec.encode(task))
    workers = Workers(found, frozenset(), {}, room=1)
    assert workers.live()
    for partition in range(PARTITIONS):
        order = [one.message.offset for one in workers.handed if one.partition_id == (TOPIC, partition)]
        assert order == sorted(order)
        assert len(order) == 6


def test_a_dead_broker_holds_nobody_up_who_leaves() -> None:
    workers, release = Workers(broker(2), frozenset(), {0: 9}, room=1), threading.Event()
    workers.live(turns=3)
    intake = workers.intake
    assert intake is not None
    consumer, sent = cast("Consumer", intake._consumer), list[list[TopicPartition]]()

    def commit(offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous or release.wait(10), "librdkafka waits long"
        sent.append(offsets)

    def close() -> None:
        assert intake is not None
        intake._on_revoke(cast("Any", consumer), [TopicPartition(TOPIC, 1)])
        release.wait(10)  # it waits for the answer to the commit

    with pytest.MonkeyPatch.context() as patch, capture_logs() as logs:
        patch.setattr(consumer, "commit", commit)
        patch.setattr(consumer, "close", close, raising=False)
        patch.setattr(task_intake, "LEAVE_S", 0.5)
        intake._on_revoke(cast("Any", consumer), [TopicPartition(TOPIC, 0)])
        assert (TOPIC, 0) not in intake.owned
        intake._commits.on_commit(None, sent.pop())
        intake._over.set()
        intake.start()
        intake.stop()
        assert intake.is_alive()
        assert len(intake.owned) == 0
        release.set()
        intake.join(10)
    assert intake.error is None
    [lost] = [line for line in logs if line["event"] == "commit.lost"]
    assert (lost["why"], lost["partitions"]) == ("no answer from Kafka within 0 s", [f"{TOPIC}[1]"])


def test_a_worker_that_leaves_commits_before_rebalances_that_wait_and_asks_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = Workers(broker(2), frozenset(), {}, room=1)
    workers.live()
    intake = workers.intake
    assert intake is not None
    consumer, seen = cast("Consumer", intake._consumer), list[object]()

    def commit(offsets: list[TopicPartition], asynchronous: bool) -> None:
        seen.append([tp.partition for tp in offsets])

    def close() -> None:
        seen.append("close")
        intake._on_assign(cast("Any", consumer), [TopicPartition(TOPIC, 5)])

    monkeypatch.setattr(consumer, "commit", commit)
    monkeypatch.setattr(consumer, "close", close, raising=False)
    monkeypatch.setattr(consumer, "committed", lambda *_, **__: pytest.fail("Kafka does not answer"))
    intake._over.set()
    intake.run()
    assert intake.error is None
    assert seen == [[0, 1], "close"]


def test_a_last_commit_that_kafka_does_not_accept_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(broker(2), frozenset(), {}, room=1)
    workers.live()
    assert workers.intake is not None
    commits, consumer = workers.intake._commits, cast("Any", workers.intake._consumer)
    zero, one = (TOPIC, 0), (TOPIC, 1)
    sent: list[list[TopicPartition]] = []
    monkeypatch.setattr(consumer, "commit", lambda offsets, asynchronous: sent.append(offsets))
    with capture_logs() as logs:
        for partition_ids in ([zero], [zero], [zero, one]):
            commits.send_last(consumer, partition_ids)
        taken, refused, partly = sent
        commits.on_commit(None, taken)
        commits.on_commit(STALE, refused)
        commits.on_commit(None, [partly[0], cast("Any", answer_of(partly[1], STALE))])
        monkeypatch.setattr(consumer, "commit", refuse)
        workers.intake._on_revoke(consumer, [TopicPartition(*zero)])
    lost = [(line["why"], line["partitions"]) for line in logs if line["event"] == "commit.lost"]
    names = [f"{TOPIC}[0]", f"{TOPIC}[1]"]
    assert lost == [(STALE.str(), names[:1]), (STALE.str(), names), (STALE.str(), names[:1])]
    assert not commits.unanswered


def refuse(offsets: list[TopicPartition], asynchronous: bool) -> None:
    raise KafkaException(STALE)


def answer_of(tp: TopicPartition, error: KafkaError) -> SimpleNamespace:
    return SimpleNamespace(topic=tp.topic, partition=tp.partition, offset=tp.offset, error=error)


def test_a_commit_without_an_answer_stops_no_poll_is_named_and_starts_nothing_until_kafka_takes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a freeze of the broker the answer comes only in a poll, behind the loss of all partitions."""
    made = broker(4)
    sent: list[list[TopicPartition]] = []
    monkeypatch.setattr(Consumer, "commit", lambda _, offsets, asynchronous: sent.append(offsets))
    workers = Workers(made, frozenset(), {}, room=8)
    assert workers.live(turns=5)
    intake = workers.intake
    assert intake is not None
    commits, consumer = intake._commits, cast("Any", intake._consumer)
    assert (len(sent), workers.handed) == (1, []), "one commit at a time, and no task before its answer"
    monkeypatch.setattr(task_commits, "SLOW_ANSWER_S", 0.0)
    intake.turn()
    assert "no answer from Kafka for 0 s" in commits._pauses.detail

    partitions = [TopicPartition(*partition_id) for partition_id in made.logs]
    intake._on_lost(consumer, partitions)
    commits.on_commit(STALE, sent[0])
    intake._on_assign(consumer, partitions)
    intake.turn()
    commits.on_commit(None, sent[1])
    handed: list[StartedTask] = []
    monkeypatch.setattr(intake, "_on_start", handed.append)
    intake.turn()
    intake._over.set()
    intake.run()
    unanswered = {commit.watched for commit in commits._sent}
    assert unanswered, "the last commit has no answer either"
    assert not unanswered & CALLS._calls.keys(), "a client that is gone ends no process"
    assert sorted(one.task.number for one in handed if one.task) == [0, 1, 2, 3]
    assert not commits._pauses.detail


def test_an_intake_whose_client_has_lost_every_broker_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost(Consumer):
        def consume(self, most: int, _timeout_s: float) -> list[Raw]:
            return []

        def list_topics(self, *_: object, **__: object) -> None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    answer = SimpleNamespace(brokers={1: "a broker"})
    monkeypatch.setattr(task_intake, "open_consumer", lambda *_, **__: Lost(Broker({})))
    monkeypatch.setattr(clients, "get_admin", lambda _: SimpleNamespace(list_topics=lambda **_: answer))
    monkeypatch.setattr(broker_contact, "LOOK_EVERY_S", 0.0)
    member = Subscription(Connection("k:1"), "w", "g", (TOPIC,), "r")
    intake = TaskIntake(member, cast(Any, None), lambda _: None, lambda _: None, Pauses())
    monkeypatch.setattr(intake.owned, "list_changed", lambda: [(TOPIC, 0)])
    monkeypatch.setattr(intake._consumer, "commit", lambda **_: pytest.fail("the commit would wait for a broker"))
    intake.run()
    assert isinstance(intake.error, MustRestart)
    assert "the Kafka client has lost every broker" in str(intake.error)
