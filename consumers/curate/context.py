"""What the partitions of one curator share, and which recipe is in force for a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.infra.kafka.clients import Message
from headrace.infra.recipe.settings import Recipe
from headrace.schemas.headers import Stamp
from headrace.schemas.records import ClaimCheck, TrajectoryGroup
from headrace.schemas.topics import Topics, policy_of


@dataclass(frozen=True, slots=True)
class CuratorContext:
    """What a curator's partitions share, none of it state."""

    run_id: str
    policy_variant: str
    """A policy, or a shadow of it."""
    topics: Topics
    recipe_of: Callable[[int], Recipe]
    """Recipe by revision; raises UnknownRevision."""
    fetch: Callable[[ClaimCheck], bytes]
    is_published: Callable[[Message, TrajectoryGroup], bool] | None = None
    """Whether the version is published that a message's group names as the newest. None in a run that began before
    this was asked: any counts as published there that is not LARGEST_LEAP ahead of the clock."""
    is_issued: Callable[[Message, Stamp], bool] | None = None
    """Whether the number of a message's group was issued. None in a run that began before this was asked: any was."""

    @property
    def policy(self) -> str:
        """Whose trajectories."""
        return policy_of(self.policy_variant)

    @property
    def is_shadow(self) -> bool:
        """Whether another curator concludes the numbers that the feeder waits for."""
        return self.policy_variant != self.policy


class UnknownRevision(LookupError):
    """The recipe topic has no such revision."""


def find_recipe(recipes: Mapping[int, Recipe], revision: int, policy_variant: str) -> Recipe:
    """Return the recipe of a revision, or where that lacks the shadow, of the first after it that has it.

    Raises UnknownRevision.
    """
    if revision not in recipes:
        raise UnknownRevision(
            f"recipe revision {revision} is not known; the newest known one is {max(recipes, default='none')}"
        )
    since = (recipes[known] for known in sorted(recipes) if known >= revision)
    later = (recipe for recipe in since if policy_variant in recipe.policy_variants)
    return next(later, recipes[revision])
