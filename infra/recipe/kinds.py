"""Kinds of rollout workers: what a worker of a kind may play, and which kind plays what. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Recipe


@dataclass(frozen=True, slots=True)
class Playable:
    """What a worker may play of its workflow."""

    training: bool = True
    evaluations: bool = True

    def __bool__(self) -> bool:
        return self.training or self.evaluations


def find_playable(recipe: Recipe, workflow: str, kind: str, region: str = "") -> Playable:
    """Return what a worker of a kind may play of a workflow; evaluations are played only at home."""
    training, evaluations = (recipe.kind_of(workflow, evaluation=which) for which in (False, True))
    return Playable(training in {"", kind}, not region and evaluations in {"", kind})


def require_playable(recipe: Recipe, workflow: str, kind: str, region: str = "") -> Playable:
    """Return what a worker of a kind may play of a workflow. Raises UsageError if that is nothing."""
    if found := find_playable(recipe, workflow, kind, region):
        return found
    wanted = recipe.kind_of(workflow)
    own = f"is of kind {kind}" if kind else "has no kind"
    raise UsageError(
        f"workflows.{workflow}.kind pins workflow {workflow} to workers of kind {wanted}, and this worker {own}: start "
        f"it with --kind {wanted}, on a machine that fits, or let it play another workflow by --workflow"
    )


def list_kinds(recipe: Recipe, workflow: str) -> tuple[str, ...]:
    """Return the kinds of workers that a workflow needs, the empty kind if any will do.

    The first may play the workflow. There is a second only if the evaluations are pinned to another one.
    """
    training, evaluations = (recipe.kind_of(workflow, evaluation=which) for which in (False, True))
    wanted = (training, evaluations if recipe.evaluate.every else "")
    return tuple(dict.fromkeys(kind for kind in wanted if kind)) or ("",)


def list_started_kinds(recipe: Recipe) -> tuple[str, ...]:
    """Return the kinds of workers that `headrace up` starts; none without workers."""
    kinds = (kind for workflow in recipe.workflows for kind in list_kinds(recipe, workflow))
    return tuple(dict.fromkeys(kinds)) if recipe.launch.workers else ()
