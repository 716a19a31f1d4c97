"""A run's progress: only a run that has not trained accepts a changed recipe without being asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.infra.kafka.clients import RunAddress
from headrace.infra.kafka.decoding import read_record
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.recipe.settings import Recipe
from headrace.schemas.records import BatchTrained, WeightsPublished
from headrace.schemas.topics import Topics

OF_VERSION_0 = frozenset({"path", "model", "alphabet", "warm_start", "lora"})
"""Keys of a policy that determine its version 0."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Progress of a run's trainers."""

    has_trained: bool = False
    """Whether there is a version above 0, or an unreadable record."""
    begun: frozenset[str] = frozenset()
    """Policies with a version 0."""

    def can_take(self, differences: Iterable[str]) -> bool:
        """Return whether a recipe with these differences, `key: old -> new`, is accepted without --new-recipe.

        Version 0 of a policy stays, so a recipe that would have made another version 0 is not accepted.
        """
        if self.has_trained:
            return False
        keys = [line.partition(":")[0].split(".") for line in differences]
        if self.begun and ["seed"] in keys:  # models and adapters are drawn from the seed
            return False
        return not any(
            key[0] == "policies" and len(key) > 2 and key[1] in self.begun and key[2] in OF_VERSION_0 for key in keys
        )


def read_progress(address: RunAddress, recipe: Recipe) -> RunProgress:
    """Return the progress of a run. Raises KafkaAway and KafkaRefused."""
    topics, begun = Topics(address.run), set()
    for message in read_all(address.connection, [topics.batches(one) for one in recipe.policy_variants]):
        batch = read_record(message, BatchTrained)
        if batch is None or batch.version > 0:
            return RunProgress(has_trained=True)
    for message in read_all(address.connection, [topics.weights(one) for one in recipe.policy_variants]):
        published = read_record(message, WeightsPublished)
        if published is None or published.version > 0:
            return RunProgress(has_trained=True)
        begun.add(published.policy)
    return RunProgress(begun=frozenset(begun))
