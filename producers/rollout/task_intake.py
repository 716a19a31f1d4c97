"""A worker's membership in the group of its workflow: which tasks are ours, started, done, committed.

One thread owns the consumer and the ledgers; nobody else touches them. Other threads leave acknowledged tasks in
`done` and hear of tasks and of revocations by two callbacks. It never stops polling, so the membership lives while
episodes run; tasks that cannot start yet wait here, and a partition with many of them is paused.
"""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, Protocol

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from headrace.infra.failpoints import reach
from headrace.infra.kafka.clients import AWAY, Connection, Message, good_messages, open_consumer, patiently, translate
from headrace.infra.kafka.decoding import LONGEST_NAME, MOST_EPISODES, Rejected, decode_own
from headrace.infra.kafka.group_offsets import without_errors
from headrace.infra.kafka.topic_reader import Place
from headrace.infra.stopwatch import Stopwatch
from headrace.producers.rollout.pauses import Pauses
from headrace.producers.rollout.slots import Reservation
from headrace.producers.task_ledger import POISON_STARTS, TaskLedger
from headrace.schemas.records import Task

log = structlog.get_logger()

MOST_RECORDS = 64
MOST_WAITING, FEW_WAITING = 64, 16
"""Tasks of one partition that wait here: it is paused at the first number and goes on at the second."""
TURN_S = 0.02
COMMIT_EVERY_S = 0.15
PATIENCE_S = 30.0
LEAVE_S = 2.0
REVISION_PATIENCE_S = 30.0
"""A task may be read before the revision of the recipe that it names; one that names none holds nobody up."""

MEMBERSHIP_MOVES = {
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError._STATE,  # noqa: SLF001 - librdkafka's own codes begin with an underscore
}
"""A commit met a rebalance: the next poll tells what is still ours."""

Verdict = Literal["play", "run_end", "poison", "dead"]
"""What is to be done with a task; all but `play` conclude it at once."""


@dataclass(frozen=True, slots=True)
class StartedTask:
    """A task whose start is committed. `task` is None for a dead letter, which `why` (reason, detail) explains."""

    place: Place
    message: Message
    task: Task | None
    verdict: Verdict
    why: tuple[str, str] = ("", "")
    reservation: Reservation | None = None
    ownership: int = 0
    """Which of the intake's ownerships it was started in; in a later one its offset may be another run's task."""


class Gate(Protocol):
    """Decides, in the intake's thread, what may start."""

    def admit(self, task: Task) -> Reservation | Literal["run_end", "unknown_revision"] | None:
        """Return places for the task's episodes, `run_end` to conclude it unplayed, or None: not now.

        `unknown_revision`: its revision was not read yet, and perhaps never will be.
        """


@dataclass(frozen=True, slots=True)
class Member:
    """Who an intake is."""

    connection: Connection
    name: str
    """Client id."""
    group: str
    topics: tuple[str, ...]
    run_id: str


@dataclass(slots=True)
class _Held:
    """A partition that is ours."""

    ledger: TaskLedger
    ownership: int
    dirty: bool = False
    waiting: int = 0
    paused: bool = False


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A task that was received and not started."""

    order: tuple[int, int]
    message: Message
    task: Task | None
    why: tuple[str, str]
    since: float

    @property
    def place(self) -> Place:
        return self.message.topic, self.message.partition


class TaskIntake(threading.Thread):
    """The poll thread.

    Args:
        member: Who it is.
        gate: What may start.
        on_start: Called with every started task, in this thread.
        on_revoke: Called with partitions that are ours no more, after their commit; their episodes are to be cancelled.
        pauses: Where waits are said.
    """

    def __init__(
        self,
        member: Member,
        gate: Gate,
        on_start: Callable[[StartedTask], object],
        on_revoke: Callable[[frozenset[Place]], object],
        pauses: Pauses,
    ) -> None:
        super().__init__(name="task-intake", daemon=True)
        self.watch = Stopwatch()
        self.error: BaseException | None = None
        """What ended this thread, if it was not `stop`."""
        self._member, self._gate, self._on_start, self._tell_revoked = member, gate, on_start, on_revoke
        self._pauses = pauses
        self._held: dict[Place, _Held] = {}
        self._waiting: list[_Waiting] = []
        self._starting: list[StartedTask] = []
        self._running: set[tuple[Place, int]] = set()
        """Started, and not done."""
        self._alone: tuple[Place, int] | None = None
        """The one of them beside which nothing may start."""
        self._ownerships = count(1)
        self._done: deque[StartedTask] = deque()
        self._commit_due = 0.0
        self._in_good_order = True
        self._drains, self._over = threading.Event(), threading.Event()
        # The default assignor, uniform, evens out the sum over all topics: two workers would get one topic each.
        self._consumer: Consumer = open_consumer(
            member.connection, member.name, member.group, group_remote_assignor="range"
        )

    # ------------------------------------------------------------------------------------------ the other threads

    @property
    def partitions(self) -> int:
        """How many are ours."""
        return len(self._held)

    def done(self, started: StartedTask) -> None:
        """Say that all records of a task are acknowledged."""
        self._done.append(started)

    def drain(self) -> None:
        """Start nothing more."""
        self._drains.set()

    def stop(self, *, in_good_order: bool = True) -> None:
        """Commit, leave the group, end the thread; without good order the tasks that run keep their starts."""
        self._in_good_order = in_good_order
        self._over.set()
        self.join(LEAVE_S)

    # --------------------------------------------------------------------------------------------- the own thread

    def run(self) -> None:
        """Take turns until `stop`."""
        try:
            callbacks = {"on_assign": self._on_assign, "on_revoke": self._on_revoke, "on_lost": self._on_lost}
            self._consumer.subscribe(list(self._member.topics), **callbacks)
            while not self._over.is_set():
                self.turn()
            self._take_done()
            self._leave(self._held)
            self._consumer.close()
        except BaseException as error:  # noqa: BLE001 - the worker's main thread raises it
            self.error = error

    def turn(self) -> None:
        """Take one turn.

        1. poll: records; rebalances happen in here, and partitions that are new are restored.
        2. done: acknowledged tasks go into the ledgers.
        3. start: what the gate lets through; a task that one more death makes poison runs alone.
        4. commit: starts before they run, ends every 150 ms.
        5. hand over: what was started.
        """
        self._poll()  # 1
        self._take_done()  # 2
        if not self._drains.is_set():
            self._start()  # 3
        if self._commit():  # 4
            self._hand_over()  # 5

    # ------------------------------------------------------------------------------------------------- rebalances

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Own: ledgers are restored, and say where reading begins. The group's offset may be that of another run."""
        positions = self._restore(partitions) if partitions else []
        consumer.incremental_assign(positions)
        consumer.resume(partitions)  # we may have paused them in an earlier ownership
        if partitions:
            log.info("partitions.assigned", partitions=_names(_places(partitions)))

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Commit what is done, blame no open task for its start, and forget."""
        self._take_done()
        places = _places(partitions)
        self._leave(place for place in places if place in self._held)
        self._forget(consumer, places)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget: it is too late for a commit."""
        self._forget(consumer, _places(partitions))

    def _leave(self, places: Iterable[Place]) -> None:
        leaving = {place: self._held[place] for place in places}
        if self._in_good_order:
            for held in leaving.values():
                held.ledger.reset_starts()
        try:
            self._commit_ledgers(leaving)
        except KafkaException as error:
            log.warning("commit.lost", why=error.args[0].str(), partitions=_names(leaving))

    def _forget(self, consumer: Consumer, places: frozenset[Place]) -> None:
        consumer.incremental_unassign([TopicPartition(*place) for place in places])
        for place in places:
            self._held.pop(place, None)
        self._waiting = [item for item in self._waiting if item.place not in places]
        for started in (started for started in self._starting if started.place in places):
            _give_back(started)
        self._starting = [started for started in self._starting if started.place not in places]
        self._running = {running for running in self._running if running[0] not in places}
        if self._alone not in self._running:
            self._alone = None
        log.info("partitions.revoked", partitions=_names(places))
        self._tell_revoked(places)

    def _restore(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Restore the ledgers; return where each partition is to be read from."""
        asked = [TopicPartition(tp.topic, tp.partition) for tp in partitions]
        found: list[TopicPartition] = patiently(
            lambda: without_errors(self._consumer.committed(asked, timeout=10)),
            f"asking where group {self._member.group} stands",
            PATIENCE_S,
        )
        positions = []
        for tp in found:
            ledger = TaskLedger(tp.offset, tp.metadata or "", self._member.run_id)
            if ledger.position < tp.offset:
                log.warning("commit.other_run", partition=f"{tp.topic}[{tp.partition}]", offset=tp.offset)
            self._held[tp.topic, tp.partition] = _Held(ledger, next(self._ownerships))
            positions.append(TopicPartition(tp.topic, tp.partition, ledger.position or OFFSET_BEGINNING))
        return positions

    # ------------------------------------------------------------------------------------------ the steps of a turn

    def _poll(self) -> None:
        with self.watch.measure("consume"):
            raw = self._consumer.consume(MOST_RECORDS, 0)
        if not raw:
            with self.watch.measure("wait"):
                one = self._consumer.poll(TURN_S)
            raw = [one] if one is not None else []
        for message in good_messages(raw, f"reading {', '.join(self._member.topics)}"):
            held = self._held.get((message.topic, message.partition))
            if held is None:
                continue
            if held.ledger.receive(message.offset):
                self._receive(held, message)
            else:
                held.dirty = True

    def _receive(self, held: _Held, message: Message) -> None:
        task: Task | None = None
        why = ("", "")
        with self.watch.measure("decode"):
            try:
                task = read_task(message.value, self._member.run_id)
            except Rejected as rejected:
                why = rejected.why
        order = (task.issued_ms, task.number) if task else (0, 0)
        insort(self._waiting, _Waiting(order, message, task, why, time.monotonic()), key=lambda item: item.order)
        held.waiting += 1
        if held.waiting >= MOST_WAITING and not held.paused:
            held.paused = True
            self._consumer.pause([TopicPartition(message.topic, message.partition)])

    def _take_done(self) -> None:
        while self._done:
            started = self._done.popleft()
            place, offset = started.place, started.message.offset
            held = self._held.get(place)
            if held is None or held.ownership != started.ownership:
                continue  # whoever owned it next plays it again
            self._running.discard((place, offset))
            if self._alone == (place, offset):
                self._alone = None
            held.ledger.done(offset)
            held.dirty = True

    def _start(self) -> None:
        """Start what may, oldest first; where one task has no room, later ones of its topic do not overtake it.

        One that has to run alone is not overtaken by any, or it would wait for ever.
        """
        refused: set[str] = set()
        left = []
        for item in self._waiting:
            started = None if item.message.topic in refused else self._judged(item, refused)
            if started is None:
                left.append(item)
                continue
            held = self._held[item.place]
            held.ledger.start(item.message.offset)
            self._running.add((item.place, item.message.offset))
            held.dirty, held.waiting = True, held.waiting - 1
            self._starting.append(replace(started, ownership=held.ownership))
            if held.paused and held.waiting <= FEW_WAITING:
                held.paused = False
                self._consumer.resume([TopicPartition(*item.place)])
        self._waiting = left

    def _judged(self, item: _Waiting, refused: set[str]) -> StartedTask | None:
        """Return the task as started; None when it has to wait."""
        place, offset = item.place, item.message.offset
        if item.task is None:
            return StartedTask(place, item.message, None, "dead", item.why)
        ledger = self._held[place].ledger
        starts, alone = ledger.starts_before(offset), ledger.must_run_alone(offset)
        if starts >= POISON_STARTS:
            why = f"{item.task.stream}:{item.task.number} was started {starts} times, and its worker died every time"
            return StartedTask(place, item.message, item.task, "poison", ("poison", why))
        if self._alone is not None or (alone and self._running):
            refused.update(self._member.topics)
            return None
        admitted = self._gate.admit(item.task)
        if isinstance(admitted, str):
            return self._unplayed(item, item.task, admitted)
        if admitted is None:
            refused.add(item.message.topic)
            return None
        if alone:
            self._alone = (place, offset)
            log.warning("task.suspect", stream=item.task.stream, number=item.task.number, starts=starts)
        return StartedTask(place, item.message, item.task, "play", reservation=admitted)

    def _unplayed(
        self, item: _Waiting, task: Task, verdict: Literal["run_end", "unknown_revision"]
    ) -> StartedTask | None:
        if verdict == "run_end":
            why = ("run_end", "the run was over before it began")
            return StartedTask(item.place, item.message, task, "run_end", why)
        if time.monotonic() - item.since < REVISION_PATIENCE_S:
            return None
        why = (verdict, f"revision {task.revision} did not come within {REVISION_PATIENCE_S:.0f} s")
        return StartedTask(item.place, item.message, None, "dead", why)

    def _commit(self) -> bool:
        """Commit what is dirty and due; False when that has to be tried again."""
        dirty = {place: held for place, held in self._held.items() if held.dirty}
        if not dirty or not (self._starting or time.monotonic() >= self._commit_due):
            return not self._starting
        try:
            with self.watch.measure("commit"):
                self._commit_ledgers(dirty)
        except KafkaException as error:
            cause: KafkaError = error.args[0]
            if not (cause.retriable() or cause.code() in AWAY or cause.code() in MEMBERSHIP_MOVES):
                raise translate(error, f"committing for group {self._member.group}") from error
            self._pauses.begin("commit", cause.str())
            return False
        self._pauses.end("commit")
        self._commit_due = time.monotonic() + COMMIT_EVERY_S
        return True

    def _commit_ledgers(self, ledgers: dict[Place, _Held]) -> None:
        offsets = [TopicPartition(*place, *held.ledger.commit()) for place, held in ledgers.items()]
        if offsets:
            reach("rollout.committing")
            without_errors(self._consumer.commit(offsets=offsets, asynchronous=False) or [])
            reach("rollout.committed")
        for held in ledgers.values():
            held.dirty = False

    def _hand_over(self) -> None:
        starting, self._starting = self._starting, []
        for started in starting:
            self._on_start(started)


def read_task(value: bytes, run_id: str) -> Task:
    """Return the task of a message. Raises Rejected for one that cannot be played."""
    task = decode_own(value, Task, run_id, lambda task: f"the task is of run {task.run_id}, this is {run_id}")
    longest = max(len(task.stream), len(task.task_id), len(task.tier))
    if not 1 <= task.n_asked <= MOST_EPISODES or longest > LONGEST_NAME or task.number < 0:
        raise Rejected("unusable", f"number {task.number}, {task.n_asked} episodes, a name of {longest} characters")
    return task


def _give_back(started: StartedTask) -> None:
    if started.reservation is not None:
        started.reservation.close()


def _places(partitions: Iterable[TopicPartition]) -> frozenset[Place]:
    return frozenset((tp.topic, tp.partition) for tp in partitions)


def _names(places: Iterable[Place]) -> list[str]:
    return [f"{topic}[{partition}]" for topic, partition in sorted(places)]
