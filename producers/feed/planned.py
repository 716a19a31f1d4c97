"""Builds the tasks to produce, for training and for evaluations. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.envs.contract import Problem
from headrace.envs.payload import problem_to_json
from headrace.infra.recipe.settings import Recipe
from headrace.producers.feed.evaluation_schedule import Evaluation
from headrace.producers.feed.open_tasks import OpenTask
from headrace.schemas.ids import GroupId, derive_task_seed, now_ms
from headrace.schemas.records import Task
from headrace.schemas.topics import workflow_of


@dataclass(frozen=True, slots=True)
class Planned:
    """A task to produce."""

    task: Task
    open: OpenTask
    """Holds the task's partition, and takes its offset."""


def build_training_task(recipe: Recipe, bare: Task, attempt: int) -> Task:
    """Return a training number's task from what `build_common_task` returned."""
    return replace(bare, workflow=workflow_of(bare.stream), n_asked=recipe.rollout.group_size, attempt=attempt)


def build_evaluation_task(recipe: Recipe, bare: Task, attempt: int, evaluation: Evaluation) -> Task:
    """Return the task of a number of an evaluation from what `build_common_task` returned."""
    return replace(
        bare,
        workflow=evaluation.workflow,
        purpose="eval",
        n_asked=recipe.evaluate.played_samples,
        versions=evaluation.versions,
        attempt=attempt,
    )


def build_common_task(recipe: Recipe, run_id: str, revision: int, group: GroupId, problem: Problem) -> Task:
    """Return a task with the fields that both kinds share: number, problem and seed."""
    return Task(
        run_id=run_id,
        stream=group.stream,
        number=group.number,
        revision=revision,
        task_id=problem.task_id,
        tier=problem.tier,
        payload=problem_to_json(problem),
        seed=derive_task_seed(recipe.seed, *group),
        issued_ms=now_ms(),
    )
