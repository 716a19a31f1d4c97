"""Compares the versions that evaluation tasks ask for with those of their answers. No I/O.

Memory: four bytes for a number and policy.
"""

from __future__ import annotations

from headrace.consumers.evaluate.evaluation import workflow_of
from headrace.infra.recipe.settings import Recipe
from headrace.ops.audit.pages import NEVER_TRAINED, Pages
from headrace.schemas.records import Task, TrajectoryGroup
from headrace.schemas.versions import find_version_range


class AskedVersions:
    """Takes in all tasks before answers."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._pages = {policy: Pages() for policy in recipe.policies}
        """One more than the version: 0 for a task that leaves it open, because its policy came with a later recipe."""

    def compare_task(self, task: Task) -> str:
        """Take in a task; return how it asks for another version than an earlier one of its number; empty if it agrees.

        All attempts ask for the same versions: the feeder keeps them with the evaluation.
        """
        workflow = workflow_of(task.stream)
        for policy in self._recipe.policies_of(workflow) if workflow in self._recipe.workflows else ():
            pages, version = self._pages[policy], task.versions.get(policy, -1)
            known = pages.version(workflow, task.number, 0)
            if known not in (NEVER_TRAINED, version + 1):
                return (
                    f"it asks for version {version} of {policy}, but an earlier task of {task.stream}:{task.number} "
                    f"asks for version {known - 1}"
                )
            pages.set_version(workflow, task.number, 0, version + 1)
        return ""

    def compare_answer(self, group: TrajectoryGroup) -> str:
        """Return how an answer is of another version than its task; empty if it agrees, or if there is no task."""
        played = set(find_version_range(group.trajectories)) - {-1}
        if group.asked_version >= 0 and played - {group.asked_version}:
            return f"it answers for version {group.asked_version}, but version {max(played)} generated tokens of it"
        known = self._pages[group.policy].version(workflow_of(group.stream), group.number, 0)
        if known in (NEVER_TRAINED, group.asked_version + 1):
            return ""
        return (
            f"it answers for version {group.asked_version}, but the task {group.stream}:{group.number} asks for "
            f"version {known - 1}"
        )
