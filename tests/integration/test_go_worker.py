"""The worker in Go of examples/go-worker, the only worker of a run whose other parts are ours."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from made_run import make_run, tiny_recipe
from patience import PATIENCE_S
from stoppable import Start, starter, until
from trained_run import batches, command, outcomes

from headrace.envs.arithmetic import ALPHABET, Arithmetic
from headrace.envs.contract import Generation
from headrace.envs.payload import problem_from_json, problem_to_json
from headrace.envs.transcript import Transcript
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.group_offsets import fetch_commits
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.run.run import Run, read_revisions
from headrace.infra.store.object_store import ObjectStore
from headrace.producers.rollout.group_records import build_stamp
from headrace.schemas import codec
from headrace.schemas.headers import Stamp
from headrace.schemas.records import Sampling, Sequence, Task, Trajectory, TrajectoryGroup
from headrace.trainers.learner.model import character_tokenizer, encode, encode_completion

pytestmark = pytest.mark.packages

ROOT = Path(__file__).parents[2]
SCHEMAS = ("-schemas", str(ROOT / "schemas" / "avsc"))
OF_THE_TASK = ("run_id", "stream", "number", "attempt", "revision", "task_id", "tier", "n_asked")
STEPS = 3


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no `go` on the PATH, which builds the worker")
    built = tmp_path_factory.mktemp("go") / "go-worker"
    made = subprocess.run(
        [go, "build", "-o", built], cwd=ROOT / "examples" / "go-worker", capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return built


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    yield from starter(tmp_path)


@pytest.fixture
def task() -> Task:
    problem = Arithmetic(seed=1).problem("train", 5)
    return Task(
        run_id="run-1",
        stream="sums",
        number=5,
        attempt=1,
        revision=2,
        task_id=problem.task_id,
        tier=problem.tier,
        payload=problem_to_json(problem),
        n_asked=2,
        seed=2**62,
    )


def encoded(program: Path, task: Task, alphabet: str) -> bytes:
    """Return the group that the worker makes of a task."""
    words = [program, *SCHEMAS, "-encode", alphabet]
    return subprocess.run(words, input=codec.encode(task), capture_output=True, check=True).stdout


def test_the_worker_encodes_a_group_as_ours_do(program: Path, task: Task) -> None:
    said = encoded(program, task, ALPHABET)
    found, problem = codec.decode(said, TrajectoryGroup), problem_from_json(task.payload)
    answers = [(0.0, f"{problem.answer}1"), (1.0, problem.answer)]
    expected = TrajectoryGroup(
        **{name: getattr(task, name) for name in OF_THE_TASK},
        policy="solver",
        episode_ids=("sums:5:0", "sums:5:1"),
        trajectories=tuple(
            Trajectory(f"sums:5:{sample}", reward, {"boxed": 1.0}, (sequence(problem.text, answer),))
            for sample, (reward, answer) in enumerate(answers)
        ),
        head_version=0,
        engine="go-worker",
        started_ms=found.started_ms,
        finished_ms=found.finished_ms,
    )
    assert said == codec.encode(expected)
    assert 0 < found.started_ms <= found.finished_ms


def test_a_task_that_the_worker_cannot_play_becomes_a_failed_group(program: Path, task: Task) -> None:
    group = codec.decode(encoded(program, task, "abc"), TrajectoryGroup)
    assert (group.reason, group.trajectories) == ("failed", ())
    assert [(failure.sample, failure.reason) for failure in group.failures] == [(0, "error"), (1, "error")]
    assert "alphabet lacks" in group.failures[0].detail


def sequence(prompt: str, answer: str) -> Sequence:
    """An answer of version 0 by a policy to which all tokens are equally likely."""
    tokenizer = character_tokenizer(ALPHABET)
    said = np.array([*encode_completion(tokenizer, rf"\boxed{{{answer}}}"), tokenizer.eos_token_id], np.int32)
    logprobs = np.full(len(said), -np.log(len(tokenizer)), np.float32)
    sampling = Sampling(stop_ids=(tokenizer.eos_token_id,))
    transcript = Transcript("solver")
    transcript.prompt(encode(tokenizer, prompt))
    transcript.add_generation(Generation(said, logprobs, ((0, len(said)),), "stop", sampling=sampling))
    return transcript.sequence()


def test_versions_are_trained_on_groups_of_the_worker_alone_and_the_audit_closes(
    program: Path, bootstrap: str, store: ObjectStore, run_name: str, start: Start, tmp_path: Path
) -> None:
    trainer = {"steps": STEPS, "groups_per_batch": 4, "minibatches": 1, "learning_rate": 1e-3}
    checks = {"asks_for_published": True, "asks_for_issued": True}
    run = make_run(bootstrap, store, tiny_recipe(run_name, trainer=trainer), **checks)
    feeder, *_ = [start(part, "--run", str(run.address)) for part in ("feed", "curate", "train")]
    with subprocess.Popen(
        [program, *SCHEMAS, "-run", str(run.address), "-workflow", "sums"], stderr=subprocess.PIPE, text=True
    ) as worker:
        try:
            until(lambda: worker.poll() is not None or has_ended(run), "the end of the run")
            feeder.kill()
            until(lambda: worker.poll() is not None or unplayed(run) == set(), "a group for each task")
        finally:
            worker.terminate()
            _, log = worker.communicate(timeout=PATIENCE_S)
    assert (worker.returncode, log.splitlines()[-1][-7:]) == (0, "stopped"), log

    played, clocks = [], set()
    for message in groups(run):
        group, stamp = codec.decode(message.value, TrajectoryGroup), Stamp.from_headers(message.headers)
        assert stamp == build_stamp(group)
        assert (message.key, message.partition) == (stamp.key, group.number % 4)
        played.append(group.number)
        clocks.add(group.head_version)
    assert sorted(played) == list(range(len(played))), "each task was played once"
    assert max(clocks) > 0, "it took up new versions"
    commits = fetch_commits(run.connection, run.topics.rollout_group("sums"), [run.topics.tasks("sums")])
    assert all(task.offset < commits[task.topic, task.partition].offset for task in tasks(run))
    assert {commit.metadata for commit in commits.values()} == {""}, "what our workers read there is their own"

    assert [batch.version for batch in batches(run)] == list(range(1, STEPS + 1))
    assert {verdict.verdict for verdict in outcomes(run)} <= {"kept", "run_end", "surplus", "expired"}
    assert not list(read_all(run.connection, [run.topics.dead_letters]))
    audit = command(tmp_path, "audit", "--run", str(run.address))
    assert audit.code == 0, audit.out + audit.err


def has_ended(run: Run) -> bool:
    return bool(read_revisions(run.address)[-1].ended)


def unplayed(run: Run) -> set[bytes]:
    """Return the keys of tasks that have no group."""
    return {task.key for task in tasks(run)} - {group.key for group in groups(run)}


def groups(run: Run) -> list[Message]:
    return list(read_all(run.connection, [run.topics.trajectories("solver")]))


def tasks(run: Run) -> list[Message]:
    return list(read_all(run.connection, [run.topics.tasks("sums")]))
