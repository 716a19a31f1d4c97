"""How many groups and tasks of a run may be in flight at one moment, by its recipes. No I/O and no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.infra.recipe.settings import Recipe

MOST_AHEAD = 4
"""Number of batches that a trainer has begun and not committed, as in `trainers.versions.pipeline`."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The largest bounds of all revisions: a group that begins under one revision may end under another."""

    staleness: Mapping[str, Sequence[int]]
    """Policy variant to its staleness bound, by revision."""
    waiting: Mapping[str, int]
    """Policy variant to the largest number of first uses in its window and its unfinished batches."""
    earliest_ends: Mapping[str, int]
    """Policy variant to its smallest last version."""
    open: Mapping[str, int]
    """Policy to the largest number of its open tasks. A policy that shares a workflow is missing here if the feeder
    issues a task as soon as any policy has room. If all policies must have room, the feeder ignores a policy that has
    made all its versions: then the limits of the policies that share its workflows count."""

    @classmethod
    def of(cls, revisions: Sequence[Recipe]) -> Bounds:
        """Return the bounds of a run from all its recipes, in the order of revisions."""
        newest = revisions[-1]
        return cls(
            staleness={v: [_find_staleness_bound(one, v) for one in revisions] for v in newest.policy_variants},
            waiting={v: max(_find_window_limits(revisions, v), default=0) for v in newest.policy_variants},
            earliest_ends={
                v: min(one.trainer_of(v).steps for one in revisions if v in one.policy_variants)
                for v in newest.policy_variants
            },
            open={
                p: max(_find_open_limit(one, p) for one in revisions)
                for p in newest.policies
                if _is_bounded(revisions, p)
            },
        )


def _find_staleness_bound(recipe: Recipe, variant: str) -> int:
    return recipe.trainer_of(variant).max_staleness if variant in recipe.policy_variants else -1


def _find_window_limits(revisions: Sequence[Recipe], variant: str) -> Iterator[int]:
    for recipe in revisions:
        if variant in recipe.policy_variants:
            trainer = recipe.trainer_of(variant)
            yield (trainer.max_staleness + 1 + MOST_AHEAD) * trainer.groups_per_batch


def _find_open_limit(recipe: Recipe, policy: str) -> int:
    if policy not in recipe.policies:
        return 0
    sharing = {other for workflow in recipe.workflows_of(policy) for other in recipe.policies_of(workflow)}
    others = sum(_find_own_open_limit(recipe, other) for other in sharing - {policy})
    return max(_find_own_open_limit(recipe, policy), others)


def _find_own_open_limit(recipe: Recipe, policy: str) -> int:
    trainer = recipe.trainer_of(policy)
    return (trainer.max_staleness + 1) * trainer.groups_per_batch


def _is_bounded(revisions: Sequence[Recipe], policy: str) -> bool:
    return all(
        recipe.feed.pace == "all" or set(recipe.policies_of(workflow)) <= {policy}
        for recipe in revisions
        for workflow in recipe.workflows
        if policy in recipe.policies_of(workflow)
    )
