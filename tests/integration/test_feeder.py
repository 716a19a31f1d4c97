"""Feeder, evaluator and audit on a real broker and store; workers, curators and trainers are played by hand."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from typing import Any
from unittest.mock import ANY

import pytest
from confluent_kafka import TopicPartition
from made_run import TINY_MODEL, make_run, tiny_recipe
from patience import PATIENCE_S
from said import say

from headrace.consumers.evaluate.evaluator import Evaluator, open_evaluator
from headrace.envs.arithmetic import ALPHABET
from headrace.envs.payload import problem_from_json
from headrace.infra.kafka.clients import Fenced, Message, Outgoing, open_consumer
from headrace.infra.kafka.run_loop import Component, run_loop
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.run.run import Run
from headrace.infra.stopwatch import Stopwatch
from headrace.infra.store.object_store import ObjectStore
from headrace.ops.audit.report import report
from headrace.producers.feed.feeder import Feeder, open_feeder
from headrace.producers.feed.overdue import MOST_ATTEMPTS
from headrace.schemas import codec
from headrace.schemas.headers import Stamp, task_key, task_stamp
from headrace.schemas.ids import GroupId
from headrace.schemas.records import (
    BatchTrained,
    DeadLetter,
    EvalResult,
    GroupUse,
    Outcome,
    Task,
    Trajectory,
    TrajectoryGroup,
    WarmStartExamples,
    WeightsPublished,
)
from headrace.schemas.topics import eval_stream

QUOTA = 8
"""(max_staleness 1 + 1) * 4 groups per batch."""


@pytest.fixture
def make(bootstrap: str, store: ObjectStore, run_name: str) -> Callable[..., Run]:
    return lambda **tables: make_run(bootstrap, store, tiny_recipe(run_name, **tables))


class Arrived(Exception):
    """What a test waited for is true, and the turn that made it so is committed."""


def drive(component: Component, writer: TransactionalWriter, done: Callable[[], bool]) -> None:
    """Run the loop until something is true after a turn, at least one."""
    poll, turns, end = component.poll, count(), time.monotonic() + PATIENCE_S

    def watched(watch: Stopwatch) -> list[Message]:
        assert time.monotonic() < end, "the component did not get there in time"
        if next(turns) and done():
            raise Arrived
        return poll(watch)

    with pytest.MonkeyPatch.context() as patch, suppress(Arrived):
        patch.setattr(component, "poll", watched)
        run_loop(component, writer, threading.Event(), Stopwatch())


@contextmanager
def feeding(run: Run) -> Iterator[tuple[Feeder, TransactionalWriter]]:
    writer = TransactionalWriter(run.connection, f"{run.address.run}.feed")
    feeder = open_feeder(run, writer)
    try:
        yield feeder, writer
    finally:
        feeder.close()
        with suppress(Fenced):  # a successor took over in the middle
            writer.close()


def feed_until(run: Run, done: Callable[[Feeder], bool]) -> None:
    """Start a feeder anew, drive it until something is true, and leave without a word."""
    with feeding(run) as (feeder, writer):
        drive(feeder, writer, lambda: done(feeder))


def write(feeder: Feeder, writer: TransactionalWriter) -> None:
    """Write what follows from a tick, in a transaction that stays open."""
    ticked = list(feeder.tick())
    writer.begin()
    tickets = writer.produce(ticked)
    writer.flush()
    writer.produce(feeder.before_commit(tickets))
    writer.flush()


def full(feeder: Feeder) -> bool:
    return feeder.state.pacing.count_open("solver") == QUOTA


def outcome(run: Run, number: int, verdict: str = "dropped", **more: Any) -> Outgoing:
    record = Outcome(
        run_id=run.run_id,
        stream="sums",
        number=number,
        policy="solver",
        verdict=verdict,
        component="curate",
        reason="zero_variance" if verdict == "dropped" else "",
        rewards=(0.0, 1.0),
        head_version=0,
    )
    value, headers = (
        codec.encode(replace(record, **more)),
        Stamp(run.run_id, "sums", number, policy="solver").to_headers(),
    )
    return Outgoing(run.topics.outcomes("solver"), value, task_key("sums", number), headers, number % 4)


def batch(run: Run, version: int, *numbers: int) -> Outgoing:
    groups = tuple(GroupUse("sums", number) for number in numbers)
    record = BatchTrained(run_id=run.run_id, policy="solver", version=version, groups=groups)
    return Outgoing(run.topics.batches("solver"), codec.encode(record), partition=0)


def weights(run: Run, version: int) -> Outgoing:
    record = WeightsPublished(run_id=run.run_id, policy="solver", version=version)
    return Outgoing(run.topics.weights("solver"), codec.encode(record), partition=0)


def tasks(run: Run, stream: str = "sums") -> list[tuple[int, Task]]:
    """Return (partition, task) of all that stands on a stream's topic."""
    found = []
    for message in read_all(run.connection, [run.topics.tasks(stream)]):
        task = codec.decode(message.value, Task)
        assert message.key == task_key(task.stream, task.number)
        assert Stamp.from_headers(message.headers) == task_stamp(task)
        found.append((message.partition, task))
    return sorted(found, key=lambda one: (one[1].number, one[1].attempt))


def numbers(run: Run, stream: str = "sums") -> list[int]:
    return [task.number for _, task in tasks(run, stream)]


def commit_all_tasks(run: Run, stream: str = "sums", metadata: str = "") -> None:
    """Commit past every task, as the workers' group."""
    topic = run.topics.tasks(stream)
    ends: Counter[int] = Counter()
    for message in read_all(run.connection, [topic]):
        ends[message.partition] = max(ends[message.partition], message.offset + 1)
    consumer = open_consumer(run.connection, "test", run.topics.rollout_group("sums"))
    consumer.commit(offsets=[TopicPartition(topic, p, end, metadata) for p, end in ends.items()], asynchronous=False)
    consumer.close()


# ------------------------------------------------------------------------------------------------------------- feeder


def test_exactly_the_paced_number_is_issued_and_more_as_numbers_conclude(make: Callable[..., Run]) -> None:
    run = make()
    with feeding(run) as (feeder, writer):
        drive(feeder, writer, lambda: full(feeder))
        first = tasks(run)
        assert [task.number for _, task in first] == list(range(QUOTA))
        assert Counter(partition for partition, _ in first) == {0: 2, 1: 2, 2: 2, 3: 2}
        say(run, outcome(run, 1), outcome(run, 5), outcome(run, 2, "kept"), batch(run, 1, 2))
        drive(feeder, writer, lambda: feeder.state.pacing.next["sums"] == QUOTA + 3)
        drive(feeder, writer, lambda: True)
    later = tasks(run)
    assert [task.number for _, task in later] == list(range(QUOTA + 3))
    assert sorted(partition for partition, _ in later[QUOTA:]) == [1, 1, 2]  # where numbers 1, 5 and 2 had been
    task = later[3][1]
    assert (task.run_id, task.revision, task.workflow, task.n_asked) == (run.run_id, 0, "sums", 4)
    assert problem_from_json(task.payload).tier == "sum1"


def test_over_kills_in_the_middle_of_a_transaction_no_number_is_skipped_or_given_twice(
    make: Callable[..., Run],
) -> None:
    run = make()
    feed_until(run, full)
    for round_ in range(3):
        first = round_ * 4
        say(run, *[outcome(run, number) for number in range(first, first + 4)])
        with feeding(run) as (feeder, writer):
            while feeder.state.pacing.count_open("solver") > QUOTA - 4:
                for message in feeder.poll(Stopwatch()):
                    assert list(feeder.handle(message)) == []
            write(feeder, writer)
            abandoned = feeder.state.pacing.next["sums"]
            # no commit: a successor takes over while the transaction is open
            feed_until(run, full)
            assert numbers(run) == list(range(abandoned))
    assert report(run, use_store=False).policies["solver"].issued == QUOTA + 12


@pytest.mark.rollout
def test_a_feeder_knows_all_that_was_said_before_it_plans(make: Callable[..., Run]) -> None:
    run = make()
    feed_until(run, full)
    say(run, *[outcome(run, number) for number in range(QUOTA)], *[weights(run, 0)] * 600)
    with feeding(run) as (feeder, _):
        assert len(feeder.poll(Stopwatch())) >= QUOTA + 600, "one poll takes 256 at most, but for the first"


def test_a_number_that_the_workers_passed_in_silence_is_asked_again_and_done_tasks_are_deleted(
    make: Callable[..., Run],
) -> None:
    run = make(feed={"reissue_after_s": 0.5})
    feed_until(run, full)
    before = {task.number: task for _, task in tasks(run)}
    say(run, *[outcome(run, n, "kept") for n in range(6)], outcome(run, 6))
    commit_all_tasks(run)
    with feeding(run) as (feeder, writer):  # a restart: the offsets of tasks are part of the state
        feeder._commits._delete_due = 0.0
        drive(feeder, writer, lambda: any(t.attempt for t in feeder.state.pacing.tasks.values()))
    left = tasks(run)
    again = [task for _, task in left if task.attempt]
    assert [(task.number, task.attempt) for task in again] == [(7, 1)]
    assert (again[0].payload, again[0].seed) == (before[7].payload, before[7].seed)
    assert {task.number for _, task in left} == {7, 8}  # 0 to 6 were deleted; 8 followed the drop of 6
    assert report(run, use_store=False).policies["solver"].issued == QUOTA + 1


@pytest.mark.rollout
def test_a_number_that_stays_without_an_answer_ends_as_a_dead_letter(make: Callable[..., Run]) -> None:
    run = make(feed={"reissue_after_s": 0.02})
    feed_until(run, full)
    say(run, *[outcome(run, n, "kept") for n in range(7)])
    with feeding(run) as (feeder, writer):

        def concluded() -> bool:
            commit_all_tasks(run)
            task = feeder.state.pacing.tasks.get(GroupId("sums", 7))
            assert task is None or task.attempt < MOST_ATTEMPTS
            return task is None

        drive(feeder, writer, concluded)
        drive(feeder, writer, lambda: feeder.state.pacing.next["sums"] == QUOTA + 1)
    letters = [codec.decode(m.value, DeadLetter) for m in read_all(run.connection, [run.topics.dead_letters])]
    assert [(one.number, one.reason, one.component) for one in letters] == [(7, "unanswered", "feed")]
    attempts = [(task.number, task.attempt) for _, task in tasks(run) if task.attempt]
    assert max(attempts) == (7, MOST_ATTEMPTS - 1)
    assert codec.decode(letters[0].value, Task).attempt == MOST_ATTEMPTS - 1, "it can be sent back"
    assert report(run, use_store=False).policies["solver"].dead == 1


def test_what_cannot_be_read_becomes_one_dead_letter_and_concludes_its_number(make: Callable[..., Run]) -> None:
    run = make()
    feed_until(run, full)
    broken = replace(outcome(run, 3), value=b"nonsense")
    say(run, broken, outcome(run, 4, run_id="another"))
    feed_until(run, lambda feeder: feeder.state.pacing.next["sums"] == QUOTA + 2)
    feed_until(run, full)
    letters = [codec.decode(m.value, DeadLetter) for m in read_all(run.connection, [run.topics.dead_letters])]
    assert sorted((letter.number, letter.reason, letter.component) for letter in letters) == [
        (3, "undecodable", "feed"),
        (4, "other_run", "feed"),
    ]
    assert report(run, use_store=False).policies["solver"].dead == 2


@pytest.mark.rollout
def test_a_dead_letter_that_cannot_be_read_is_no_further_letter(make: Callable[..., Run]) -> None:
    run = make()
    say(run, Outgoing(run.topics.dead_letters, b"nonsense", partition=0))
    feed_until(run, lambda feeder: full(feeder) and bool(feeder.own.reader.positions[run.topics.dead_letters, 0]))
    assert len(list(read_all(run.connection, [run.topics.dead_letters]))) == 1


def warm(**more: Any) -> dict[str, Any]:
    return {"solver": {"model": TINY_MODEL, "alphabet": ALPHABET, "warm_start": {"examples": 20, **more}}}


@pytest.mark.rollout
def test_worked_examples_are_stored_and_announced_once(make: Callable[..., Run]) -> None:
    run = make(policies=warm())
    feed_until(run, full)
    feed_until(run, full)
    found = [m for m in read_all(run.connection, [run.topics.state]) if m.key == b"examples|solver"]
    assert len(found) == 1
    claim = codec.decode(found[0].value, WarmStartExamples).examples
    assert claim is not None
    lines = [json.loads(line) for line in run.get(claim).decode().splitlines()]
    assert len(lines) == 20
    assert all(set(line) == {"prompt", "completion"} and line["completion"].startswith("\\boxed") for line in lines)


# ---------------------------------------------------------------------------------------------------------- evaluator


def eval_group(run: Run, number: int, *rewards: float, version: int = 2) -> TrajectoryGroup:
    return TrajectoryGroup(
        run_id=run.run_id,
        stream=eval_stream("sums"),
        number=number,
        purpose="eval",
        policy="solver",
        n_asked=2,
        asked_version=version,
        trajectories=tuple(Trajectory(reward=reward) for reward in rewards),
    )


def eval_message(run: Run, group: TrajectoryGroup, value: bytes | None = None) -> Outgoing:
    stamp = Stamp(run.run_id, group.stream, group.number, purpose="eval", policy="solver", min_version=2)
    topic = run.topics.eval_groups("solver")
    return Outgoing(topic, value or codec.encode(group), stamp.key, stamp.to_headers(), group.number % 4)


def evaluate_until(run: Run, done: Callable[[Evaluator], bool]) -> None:
    writer = TransactionalWriter(run.connection, f"{run.address.run}.evaluate")
    evaluator = open_evaluator(run)
    try:
        drive(evaluator, writer, lambda: done(evaluator))
    finally:
        evaluator.close()
        writer.close()


def ends_read(evaluator: Evaluator) -> bool:
    """Whether all is read, and the snapshot that says so is written."""
    reader = evaluator.own.reader
    return reader.positions == reader.ends() and not evaluator._changed


@pytest.mark.rollout
def test_an_evaluation_concludes_once_over_restarts_claims_and_bytes_that_cannot_be_read(
    make: Callable[..., Run],
) -> None:
    run = make(evaluate={"every": 4, "problems": 4, "samples": 2})
    large = eval_group(run, 1, 1.0, 1.0)
    behind_claim = replace(large, trajectories=(), claim=run.put(codec.encode(large), "groups"))
    missing = replace(behind_claim, number=2, claim=replace(run.put(b"gone", "groups"), key="groups/nowhere"))
    say(run, eval_message(run, eval_group(run, 0, 1.0, 0.0)), eval_message(run, behind_claim))
    evaluate_until(run, ends_read)
    say(run, eval_message(run, behind_claim), eval_message(run, missing))
    evaluate_until(run, ends_read)
    say(run, eval_message(run, eval_group(run, 3, 1.0), b"nonsense"), eval_message(run, eval_group(run, 0, 1.0)))
    evaluate_until(run, ends_read)
    evaluate_until(run, ends_read)
    results = [codec.decode(m.value, EvalResult) for m in read_all(run.connection, [run.topics.evals("solver")])]
    assert [(r.version, r.workflow, r.problems, r.failures) for r in results] == [(2, "sums", 4, 4)]
    assert (results[0].avg_at_k, results[0].pass_at_k) == (3 / 4, {"1": 3 / 4, "2": 1.0}), "over those that played"
    letters = [codec.decode(m.value, DeadLetter) for m in read_all(run.connection, [run.topics.dead_letters])]
    assert sorted(letter.reason for letter in letters) == ["missing_object", "undecodable"]


@pytest.mark.rollout
def test_what_was_lost_of_an_evaluation_is_asked_again_until_it_has_its_result_or_six_attempts(
    make: Callable[..., Run],
) -> None:
    run = make(evaluate={"every": 4, "problems": 4, "samples": 2}, feed={"reissue_after_s": 0.2})
    say(run, weights(run, 0))
    feed_until(run, lambda feeder: bool(feeder.state.evaluating.tasks))
    stream = eval_stream("sums")
    say(run, *[eval_message(run, eval_group(run, number, 1.0, version=0)) for number in range(3)])
    say(run, Outgoing(run.topics.eval_groups("solver"), b"nonsense", partition=3))
    commit_all_tasks(run, stream)
    looks = count()
    with feeding(run) as (feeder, writer):
        drive(feeder, writer, lambda: next(looks) > 20)
    assert numbers(run, stream) == [0, 1, 2, 3], "the evaluator has read nothing: what it lacks is not known"
    evaluate_until(run, ends_read)
    with feeding(run) as (feeder, writer):  # over a restart
        drive(feeder, writer, lambda: numbers(run, stream)[3:] == [3, 3])
        assert tasks(run, stream)[4][1] == replace(tasks(run, stream)[3][1], attempt=1, issued_ms=ANY)
        say(run, eval_message(run, eval_group(run, 3, 1.0, version=0)))
        evaluate_until(run, ends_read)
        drive(feeder, writer, lambda: not feeder.state.evaluating.tasks)
        say(run, weights(run, 4))
        drive(feeder, writer, lambda: len(feeder.state.evaluating.tasks) == 4)
        say(run, *[eval_message(run, eval_group(run, number, 1.0, version=4)) for number in range(4, 7)])
        evaluate_until(run, ends_read)

        def concluded() -> bool:
            commit_all_tasks(run, stream)
            return not feeder.state.evaluating.tasks

        feeder._commits._evaluations_overdue.after_s = 0.02
        drive(feeder, writer, concluded)
    results = [codec.decode(m.value, EvalResult) for m in read_all(run.connection, [run.topics.evals("solver")])]
    assert [one.version for one in results] == [0]
    letters = [codec.decode(m.value, DeadLetter) for m in read_all(run.connection, [run.topics.dead_letters])]
    unanswered = [(one.stream, one.number) for one in letters if one.reason == "unanswered"]
    assert unanswered == [(stream, 7)]
    assert numbers(run, stream) == [0, 1, 2, 3, 3, 4, 5, 6] + [7] * MOST_ATTEMPTS


# --------------------------------------------------------------------------------------------------- audit and figures
