"""The thread that owns a worker's tasks, on a real broker: what is committed when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import TopicPartition
from made_records import tasks
from made_run import make_run, tiny_recipe
from said import say
from stoppable import until
from structlog.testing import capture_logs

from headrace.infra.kafka.clients import open_consumer
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore
from headrace.producers.rollout.intake import task_commits, task_intake
from headrace.producers.rollout.intake.slots import Slots
from headrace.producers.rollout.intake.started_task import StartedTask
from headrace.producers.rollout.intake.task_intake import Subscription, TaskIntake
from headrace.producers.rollout.pauses import Pauses
from headrace.schemas.records import Task


class Room:
    """A gate that lets everything through."""

    def __init__(self) -> None:
        self.slots = Slots(64)

    def try_admit(self, task: Task) -> object:
        return self.slots.reserve(task.n_asked)


@pytest.fixture
def run(bootstrap: str, store: ObjectStore, run_name: str) -> Run:
    return make_run(bootstrap, store, tiny_recipe(run_name, kafka={"partitions": 1}))


@contextmanager
def taking_in(run: Run, on_start: Callable[[StartedTask], object], name: str = "w") -> Iterator[TaskIntake]:
    topics = run.topics
    member = Subscription(run.connection, name, topics.rollout_group("sums"), (topics.tasks("sums"),), run.run_id)
    intake = TaskIntake(member, Room(), on_start, lambda _: None, Pauses())  # type: ignore[arg-type]
    intake.start()
    try:
        yield intake
    finally:
        intake.stop(in_good_order=False)
        assert intake.error is None


def committed(run: Run) -> tuple[int, str]:
    """Offset and metadata of the only partition."""
    with_group = open_consumer(run.connection, "look", run.topics.rollout_group("sums"))
    [found] = with_group.committed([TopicPartition(run.topics.tasks("sums"), 0)], timeout=10)
    with_group.close()
    return found.offset, found.metadata or ""


def commit(run: Run, offset: int, metadata: str) -> None:
    with_group = open_consumer(run.connection, "test", run.topics.rollout_group("sums"))
    position = TopicPartition(run.topics.tasks("sums"), 0, offset, metadata)
    with_group.commit(offsets=[position], asynchronous=False)
    with_group.close()


def test_a_start_is_committed_before_the_task_is_handed_over(run: Run) -> None:
    seen: list[tuple[int, str]] = []
    handed = threading.Event()

    def on_start(_: StartedTask) -> None:
        if not handed.is_set():
            seen.append(committed(run))
            handed.set()

    say(run, *tasks(run, range(3)))
    with taking_in(run, on_start):
        until(handed.is_set, "a task is handed over")
    [(offset, metadata)] = seen
    assert offset == 0
    assert '"started":"0:1' in metadata


def test_done_tasks_are_skipped_a_third_start_is_alone_and_a_deadly_task_goes_no_more(run: Run) -> None:
    started: list[StartedTask] = []
    say(run, *tasks(run, range(7)))
    # Of seven tasks 0 and 2 were started twice and 3 three times, when their worker died; 1, 4 and 5 are done.
    commit(run, 0, '{"done":"1,4-5","started":"0:2,2:2,3:3"}')
    with taking_in(run, started.append) as intake:
        until(lambda: started and len(started) + len(intake.queue) == 4, "the first suspect, and all that wait")
        assert len(started) == 1, "nothing runs beside a suspect"
        intake.report_done(started[0])
        until(lambda: committed(run)[0] == 2 and len(started) > 1, "the second suspect, and the commit of the first")
        intake.report_done(started[1])
        until(lambda: len(started) == 4, "the last of the tasks that may go")
    ends = [(one.message.offset, one.verdict) for one in started]
    assert ends == [(0, "play"), (2, "play"), (3, "poison"), (6, "play")]


@pytest.mark.rollout
def test_a_worker_commits_what_it_gives_up_before_the_next_owner_asks(
    bootstrap: str, store: ObjectStore, run_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(bootstrap, store, tiny_recipe(run_name, kafka={"partitions": 2}))
    monkeypatch.setattr(task_commits, "COMMIT_EVERY_S", 1e6)  # so ends are committed only with starts, or when leaving
    monkeypatch.setattr(task_intake, "LEAVE_S", 60.0)
    first_started: list[StartedTask] = []
    second_started: list[StartedTask] = []
    say(run, *tasks(run, range(8)))
    with taking_in(run, first_started.append, "first") as first, capture_logs() as logs:
        until(lambda: len(first_started) == 8, "all tasks run on the first worker")
        done = [one for one in first_started if one.message.offset != 2]
        for one in done:
            first.report_done(one)
        until(lambda: not first._done, "the first worker knows that they are done")
        with taking_in(run, second_started.append, "second") as second:
            until(lambda: len(second_started) == 1, "the second worker plays the open task of its partition")
            first.stop()
            assert not first.is_alive(), "it has left the group"
            until(lambda: len(second_started) == 2, "the second worker plays the other open task")
            starts = [second.owned.ledger(one.partition_id).count_starts(2) for one in second_started]
    assert [one.message.offset for one in second_started] == [2, 2]
    assert starts == [0, 0], "the first worker took its starts back"
    assert "commit.lost" not in {line["event"] for line in logs}
