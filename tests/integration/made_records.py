"""Records of a made run, as its components would have written them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from headrace.consumers.curate.context import CuratorContext, find_recipe
from headrace.consumers.curate.curator import CuratorPartition
from headrace.envs.arithmetic import Arithmetic
from headrace.envs.payload import problem_to_json
from headrace.infra.kafka.clients import Message, Outgoing
from headrace.infra.run.run import Run
from headrace.schemas import codec
from headrace.schemas.headers import Stamp, outcome_stamp
from headrace.schemas.records import Outcome, Sampling, Sequence, Span, Task, Trajectory, TrajectoryGroup


def tasks(run: Run, numbers: Iterable[int], **extra: object) -> list[Outgoing]:
    """What a feeder issues; `extra` is for the workflow."""
    return [_task(run, number, extra) for number in numbers]


def _task(run: Run, number: int, extra: dict[str, object]) -> Outgoing:
    problem = replace(Arithmetic(seed=1).problem("train", number), extra=extra)
    task = Task(
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
    return Outgoing(run.topics.tasks("sums"), codec.encode(task), partition=number % run.recipe.kafka.partitions)


def played(run: Run, numbers: Iterable[int], attempt: int = 0, revision: int = 0) -> list[Outgoing]:
    """Groups as a worker produces them; every third has no variance, so that the curator drops it."""
    return [_played(run, number, attempt, revision) for number in numbers]


def _played(run: Run, number: int, attempt: int, revision: int) -> Outgoing:
    sequence = Sequence(
        ids=np.array([5, 6, 7, 1], np.int32),
        logprobs=np.array([0, 0, -0.5, -0.25], np.float32),
        version_runs=np.array([-1, 2, 0, 2], np.int32),
        spans=(Span("prompt", 2), Span("generated", 2, finish_reason="stop", sampling=Sampling())),
    )
    rewards = (1.0, float(number % 3 == 0))
    group = TrajectoryGroup(
        run_id=run.run_id,
        stream="sums",
        number=number,
        attempt=attempt,
        policy="solver",
        revision=revision,
        n_asked=2,
        trajectories=tuple(Trajectory(f"sums:{number}:{i}", r, {}, (sequence,)) for i, r in enumerate(rewards)),
        head_version=0,
    )
    of_group = {"revision": revision, "policy": "solver", "min_version": 0, "max_version": 0, "head_version": 0}
    stamp = Stamp(run.run_id, "sums", number, attempt, **of_group)
    partition = number % run.recipe.kafka.partitions
    return Outgoing(run.topics.trajectories("solver"), codec.encode(group), stamp.key, stamp.to_headers(), partition)


def curated(run: Run, numbers: Iterable[int]) -> list[Outgoing]:
    """What a curator keeps of such groups."""
    states = curator_partitions(run)
    found = []
    for one in played(run, numbers):
        message = Message(one.topic, one.partition, 0, one.key, one.value, one.headers)
        found += [o for o in states[one.partition].handle(message) if o.topic == run.topics.curated("solver")]
    return found


def curator_partitions(run: Run, line: str = "solver") -> list[CuratorPartition]:
    """The memory of a curator that has seen nothing yet, by partition."""
    recipes = dict(enumerate(run.revisions))
    context = CuratorContext(
        run.run_id, line, run.topics, lambda revision: find_recipe(recipes, revision, line), run.get
    )
    partitions = run.recipe.kafka.partitions
    topic = run.topics.trajectories("solver")
    return [CuratorPartition(context, (topic, partition), partitions) for partition in range(partitions)]


def dropped(run: Run, numbers: Iterable[int]) -> list[Outgoing]:
    """Outcomes of groups that a curator dropped."""
    return [_dropped(run, number) for number in numbers]


def _dropped(run: Run, number: int) -> Outgoing:
    outcome = Outcome(
        run_id=run.run_id, stream="sums", number=number, policy="solver", verdict="dropped", component="curate"
    )
    stamp, partition = outcome_stamp(outcome), number % run.recipe.kafka.partitions
    return Outgoing(run.topics.outcomes("solver"), codec.encode(outcome), stamp.key, stamp.to_headers(), partition)
