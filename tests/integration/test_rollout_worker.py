"""The rollout worker on a real broker and store: one record per task and policy, whatever happens to the workers."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from forked import Forked
from made_run import make_run, publish, tiny_recipe
from said import say
from stoppable import until

from headrace.envs.arithmetic import ALPHABET, Arithmetic
from headrace.envs.payload import problem_to_json
from headrace.infra.kafka.clients import (
    Message,
    Outgoing,
    get_admin,
    open_consumer,
)
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.records import (
    Task,
    TrajectoryGroup,
    WorkerStatus,
)
from headrace.schemas.topics import eval_stream
from headrace.trainers.learner.model import character_tokenizer

Spawn = Callable[..., Forked]
SLOW = {"sums": {"env": {"use": "arithmetic"}, "workflow": "played:slow", "policies": {"solver": "solver"}}}
PATIENCE_S = 400


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Spawn]:
    """Start a worker as a user does, its log in `<name>.log`; whatever still runs at the end is killed."""
    started: list[Forked] = []

    def start(run: Run, name: str, concurrency: int = 64, first: str = "") -> Forked:
        started.append(Forked(play, (str(run.address), name, concurrency, first), tmp_path / f"{name}.log"))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
    for log in sorted(tmp_path.glob("*.log")):
        sys.stderr.write(f"---- {log.name}\n{log.read_text()}")


def play(address: str, name: str, concurrency: int, first: str) -> None:
    """Be a worker, that runs some code first."""
    from headrace.producers.rollout.worker import main

    exec(first)  # noqa: S102 - a test's
    main(address, None, name, "", concurrency)


# ----------------------------------------------------------------------------------------------------- what others do


def task(run: Run, number: int, **changes: object) -> Task:
    problem = Arithmetic(seed=1).problem("train", number)
    plain = Task(
        run_id=run.run_id,
        stream="sums",
        number=number,
        workflow="sums",
        task_id=problem.task_id,
        payload=problem_to_json(problem),
        n_asked=2,
        seed=number,
        issued_ms=number,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def issue(run: Run, *tasks: Task) -> None:
    partitions = run.recipe.kafka.partitions
    say(run, *(Outgoing(run.topics.tasks(t.stream), codec.encode(t), partition=t.number % partitions) for t in tasks))


# ------------------------------------------------------------------------------------------------------ what there is


def groups(run: Run, topic: str = "") -> list[TrajectoryGroup]:
    return [codec.decode(m.value, TrajectoryGroup) for m in messages(run, topic)]


def messages(run: Run, topic: str = "") -> list[Message]:
    return list(read_all(run.connection, [topic or run.topics.trajectories("solver")]))


def numbers(run: Run) -> Counter[int]:
    return Counter(group.number for group in groups(run))


def statuses(run: Run) -> dict[str, WorkerStatus]:
    """The newest by worker."""
    said = (m.value for m in read_all(run.connection, [run.topics.workers]) if m.value)
    found = (codec.decode(value, WorkerStatus) for value in said)
    return {status.worker: status for status in found}


def is_in(run: Run, worker: str, state: str) -> bool:
    status = statuses(run).get(worker)
    return status is not None and status.state == state


def serves(run: Run, worker: str, version: int) -> bool:
    status = statuses(run).get(worker)
    return status is not None and status.versions.get("solver") == version


def versions(group: TrajectoryGroup) -> set[int]:
    sequences = [sequence for trajectory in group.trajectories for sequence in trajectory.sequences]
    return {int(v) for sequence in sequences for v in sequence.version_runs[0::2]} - {-1}


# ---------------------------------------------------------------------------------------------------------- the tests


def test_every_task_becomes_one_record_whose_key_headers_partition_and_tokens_are_right(
    bootstrap: str, store: ObjectStore, run_name: str, work: Spawn, tmp_path: Path
) -> None:
    run = make_run(bootstrap, store, tiny_recipe(run_name))
    issue(run, *(task(run, number) for number in range(12)))
    worker = work(run, "w1")
    until(lambda: is_in(run, "w1", "waiting"), "worker that waits for version 0")
    publish(run, 0)
    until(lambda: len(messages(run)) >= 12, "group for every task")

    found = messages(run)
    assert numbers(run) == Counter(range(12))
    tokenizer = character_tokenizer(ALPHABET)
    for message in found:
        group = codec.decode(message.value, TrajectoryGroup)
        stamp = Stamp.from_headers(message.headers)
        assert (stamp.run_id, stamp.stream, stamp.number, stamp.policy) == ("run-1", "sums", group.number, "solver")
        assert (stamp.min_version, stamp.max_version, stamp.head_version) == (0, 0, 0)
        assert message.key == f"sums:{group.number}".encode()
        assert message.partition == group.number % 4
        assert (group.reason, group.failures, group.head_version, group.asked_version) == ("", (), 0, -1)
        assert (group.worker, group.engine, group.env, len(group.tokenizer_hash)) == ("w1", "torch", "arithmetic", 64)
        problem = json.loads(task(run, group.number).payload)
        for sample, trajectory in enumerate(group.trajectories):
            assert trajectory.id == group.episode_ids[sample] == f"sums:{group.number}:{sample}"
            [sequence] = trajectory.sequences
            prompt, generated = sequence.spans
            assert str(tokenizer.decode(sequence.ids[: prompt.length])).replace(" ", "") == problem["prompt"]
            assert versions(group) == {0}
            assert generated.sampling is not None
            assert generated.sampling.stop_ids == (tokenizer.eos_token_id,)
            assert (sequence.logprobs[prompt.length :] < 0).all()
            assert not sequence.logprobs[: prompt.length].any()
        assert len(group.trajectories) == 2

    worker.terminate()
    assert worker.wait(PATIENCE_S) == 0
    status = statuses(run)["w1"]
    assert (status.state, status.groups_done, status.episodes_done, status.episodes_failed) == ("stopped", 12, 24, 0)
    assert status.tokens > 24
    assert status.wasted_tokens == 0
    assert {"encode", "decode", "produce", "consume", "commit", "generate", "wait"} <= set(status.seconds)
    said = [codec.decode(m.value, WorkerStatus) for m in read_all(run.connection, [run.topics.workers])]
    assert all(one.detail for one in said if one.state == "waiting"), "who waits says for what"
    log = [json.loads(line) for line in (tmp_path / "w1.log").read_text().splitlines()]
    steps = [line.get("what", line["event"]) for line in log if line["event"].startswith("worker.")]
    assert [step for step in steps if step != "files of solver"] == [
        "worker.starting",
        "reads which versions are published",
        "imports the engine torch",
        "builds the engine",
        "loads the weights of solver version 0",
        "worker.ready",
        "worker.stopped",
    ]


def test_new_weights_are_taken_up_in_flight(bootstrap: str, store: ObjectStore, run_name: str, work: Spawn) -> None:
    run = make_run(bootstrap, store, tiny_recipe(run_name, workflows=SLOW))
    publish(run, 0)
    work(run, "w1")
    until(lambda: serves(run, "w1", 0), "worker at version 0")
    issue(run, *(task(run, number) for number in range(4)))
    until(lambda: statuses(run)["w1"].episodes_running > 0, "episode under way")
    publish(run, 1)
    until(lambda: len(messages(run)) >= 4, "group for every task")
    assert all(versions(group) == {0, 1} for group in groups(run))
    [stamp, *_] = [Stamp.from_headers(message.headers) for message in messages(run)]
    assert (stamp.min_version, stamp.max_version, stamp.head_version) == (0, 1, 1)


def test_an_evaluation_runs_on_exactly_its_version_though_a_newer_one_is_served(
    bootstrap: str, store: ObjectStore, run_name: str, work: Spawn
) -> None:
    run = make_run(bootstrap, store, tiny_recipe(run_name, workflows=SLOW))
    for version in range(3):
        publish(run, version)
    work(run, "w1")
    until(lambda: serves(run, "w1", 2), "worker at version 2")
    stream = eval_stream("sums")
    issue(
        run,
        *(task(run, n, stream=stream, purpose="eval", versions={"solver": n % 4}) for n in range(8)),
        task(run, 0),
    )
    topic = run.topics.eval_groups("solver")
    until(lambda: len(messages(run, topic)) >= 6 and len(messages(run)) >= 1, "evaluated and trained groups")
    publish(run, 3)
    until(lambda: len(messages(run, topic)) >= 8, "evaluation of a version that was not there yet")
    for group in groups(run, topic):
        assert versions(group) == {group.asked_version} == {group.number % 4}
        assert (group.stream, group.purpose, group.reason) == ("eval.sums", "eval", "")
    assert versions(groups(run)[0]) <= {2, 3}


def test_after_kill_9_the_next_worker_redoes_only_what_was_unfinished(
    bootstrap: str, store: ObjectStore, run_name: str, work: Spawn
) -> None:
    rollout = {"group_size": 4, "max_tokens": 8, "concurrency": 64, "episodes": 8}
    run = make_run(bootstrap, store, tiny_recipe(run_name, workflows=SLOW, rollout=rollout))
    publish(run, 0)
    first = work(run, "w1")
    issue(run, *(task(run, number) for number in range(24)))
    until(lambda: len(messages(run)) >= 8, "first groups")
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = set(numbers(run))
    assert len(done) < 24
    work(run, "w2")
    until(lambda: set(numbers(run)) == set(range(24)), "every number")
    # Only what was acknowledged within the last commit interval may be there twice: the four tasks of one wave.
    assert sum(count - 1 for count in numbers(run).values()) <= 4


@pytest.mark.rollout
def test_sigterm_ends_a_worker_in_time_and_its_open_tasks_are_not_blamed(
    bootstrap: str, store: ObjectStore, run_name: str, work: Spawn
) -> None:
    endless = {"sums": {**SLOW["sums"], "workflow": "played:endless"}}
    rollout = {"group_size": 4, "max_tokens": 8, "concurrency": 64, "episode_limit_s": 600}
    run = make_run(bootstrap, store, tiny_recipe(run_name, workflows=endless, rollout=rollout))
    publish(run, 0)
    worker = work(run, "w1")
    issue(run, *(task(run, number) for number in range(4)))
    until(lambda: "w1" in statuses(run) and statuses(run)["w1"].episodes_running == 8, "running episodes")
    worker.terminate()
    assert worker.wait(120) == 0
    assert not messages(run)
    assert statuses(run)["w1"].wasted_tokens > 0
    with_group = open_consumer(run.connection, "look", f"{run_name}.rollout.sums")
    partitions = [TopicPartition(run.topics.tasks("sums"), partition) for partition in range(4)]
    assert all("started" not in (found.metadata or "") for found in with_group.committed(partitions, timeout=60))
    with_group.close()


IMPATIENT = """
from headrace.infra.kafka import deleted_topics
deleted_topics.GONE_S, deleted_topics.TOPICS_LOOK_EVERY_S = 2.0, 0.2
"""


@pytest.mark.rollout
@pytest.mark.parametrize(
    "topic",
    ["trajectories.solver", "tasks.sums", "recipe"],
)
def test_a_worker_whose_topic_was_deleted_ends_and_says_which_and_what_to_do(
    bootstrap: str, store: ObjectStore, run_name: str, work: Spawn, tmp_path: Path, topic: str
) -> None:
    run = make_run(bootstrap, store, tiny_recipe(run_name))
    publish(run, 0)
    worker = work(run, "w1", 8, IMPATIENT)
    issue(run, *(task(run, number) for number in range(4)))
    until(lambda: set(numbers(run)) == set(range(4)), "every number")
    for deleted in get_admin(run.connection).delete_topics([f"{run_name}.{topic}"]).values():
        deleted.result(120)
    if topic != "tasks.sums":
        issue(run, task(run, 4))  # its group finds no topic, or is delivered
    assert worker.wait(PATIENCE_S) not in {0, None}
    said = (tmp_path / "w1.log").read_text()
    told = f"{run_name}.{topic} was deleted: Kafka has answered for 2 s that it does not exist."
    if topic == "tasks.sums" and "UNKNOWN_TOPIC_OR_PART" in said:
        return  # a commit was refused first, which names the group
    assert told in said
    assert "begin a new run" in said
