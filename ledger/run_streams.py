"""The policies, shadows and streams of a run, and which numbers a dead letter concludes. No I/O."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b

from headrace.infra.recipe.settings import Recipe
from headrace.ledger.trained_streams import TrainedStreams
from headrace.schemas.records import DeadLetter
from headrace.schemas.topics import Topics, is_eval, policy_of


class RunStreams:
    """The policies, shadows and streams of a run, by the newest of its recipes and by all of them."""

    def __init__(self, recipe: Recipe, revisions: Sequence[Recipe] = ()) -> None:
        self.recipe = recipe
        self.trained = TrainedStreams(revisions or (recipe,))
        topics = recipe.topics
        self.variants = tuple(recipe.policy_variants)
        self.beside = {p: [one for one in self.variants if policy_of(one) == p] for p in recipe.policies}
        """Policy to the policy and its shadows."""
        own = {variant: list_own_topics(topics, variant) for variant in self.variants}
        self.variant_of_topic = {topic: variant for variant, some in own.items() for topic in some}
        self._readers = {topic for some in own.values() for topic in some}
        self._readers |= {topics.trajectories(policy) for policy in recipe.policies}
        self._tasks = {topics.tasks(one) for one in (*self.trained.workflows, *recipe.streams)}

    @property
    def digest(self) -> str:
        """A hash of what decides which rows a record gives: topics, and the policies that each stream trains."""
        policies_of = {name: self.trained.policies_of(name) for name in self.trained.workflows}
        told = json.dumps([self.recipe.name, self.variants, policies_of], sort_keys=True)
        return blake2b(told.encode(), digest_size=16).hexdigest()

    def is_task(self, topic: str) -> bool:
        """Return whether a topic holds tasks of training."""
        return topic in self._tasks

    def find_concluded(self, dead_letter: DeadLetter) -> list[str]:
        """Return the policies and shadows for which a dead letter concludes a number, or opens it again.

        A shadow is concluded only by the dead letter of a task, because no worker can have played that task. If a
        curator or a trainer cannot read a record, their shadows try to read it themselves.
        """
        if dead_letter.number < 0 or is_eval(dead_letter.stream):
            return []
        named = [dead_letter.policy] if dead_letter.policy else self.trained.policies_of(dead_letter.stream)
        known = [policy for policy in named if policy in self.beside]
        if dead_letter.topic in self._readers:
            return known
        return [variant for policy in known for variant in self.beside[policy]]


def list_own_topics(topics: Topics, variant: str) -> tuple[str, ...]:
    """Return the topics that only this policy variant writes."""
    return topics.curated(variant), topics.outcomes(variant), topics.batches(variant), topics.weights(variant)
