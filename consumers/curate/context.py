"""Shared data of a curator's partitions, and the recipe of a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message
from headrace.infra.recipe.settings import Recipe
from headrace.schemas.headers import Stamp
from headrace.schemas.records import ClaimCheck, TrajectoryGroup
from headrace.schemas.topics import Topics, policy_of, variant_of


@dataclass(frozen=True, slots=True)
class CuratorContext:
    """Shared data of a curator's partitions, without state."""

    run_id: str
    policy_variant: str
    """A policy, or a shadow of a policy."""
    topics: Topics
    recipe_of: Callable[[int], Recipe]
    """Recipe by revision; raises UnknownRevision."""
    fetch: Callable[[ClaimCheck], bytes]
    is_published: Callable[[Message, TrajectoryGroup], bool] | None = None
    """Whether the group's newest version is published. None in runs of older builds, which did not check this: there
    every version less than LARGEST_LEAP ahead of the clock counts as published."""
    is_issued: Callable[[Message, Stamp], bool] | None = None
    """Whether the number of a message's group was issued. None in runs of older builds: all numbers count as issued."""

    @property
    def policy(self) -> str:
        """The policy whose trajectories are curated."""
        return policy_of(self.policy_variant)

    @property
    def is_shadow(self) -> bool:
        """Whether this is a shadow: another curator concludes the feeder's numbers."""
        return self.policy_variant != self.policy


class UnknownRevision(LookupError):
    """The recipe topic has no such revision."""


def find_recipe(recipes: Mapping[int, Recipe], revision: int, policy_variant: str) -> Recipe:
    """Return the recipe of a revision; if it lacks the shadow, of the first later revision that has it.

    Raises UnknownRevision, and UsageError if this revision and all later ones have dropped it: they do not say by which
    rules its groups are curated.
    """
    if revision not in recipes:
        raise UnknownRevision(
            f"the run has no recipe revision {revision}; its newest is {max(recipes, default='none')}"
        )
    since = (recipes[known] for known in sorted(recipes) if known >= revision)
    found = next((recipe for recipe in since if policy_variant in recipe.policy_variants), None)
    if found is None:
        what = "shadow" if variant_of(policy_variant) else "policy"
        raise UsageError(
            f"recipe revision {revision} and later ones have no {what} {policy_variant}, so this curator ends. Stop "
            f"the trainer of {policy_variant} too; or put the {what} back into the recipe, and start the run again "
            "with --new-recipe"
        )
    return found
