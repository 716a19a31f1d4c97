"""How far a run has come, and whether a corrected recipe is simply taken: only as long as it has trained nothing."""

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
"""Keys of a policy that its version 0 was made by."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """What the trainers of a run have written."""

    has_trained: bool = False
    """Whether there is a version beyond 0, or a record that cannot be read."""
    begun: frozenset[str] = frozenset()
    """Policies whose version 0 is there."""

    def can_take(self, differences: Iterable[str]) -> bool:
        """Return whether a recipe with these differences, `key: old -> new`, is taken without being asked for.

        Version 0 of a policy stays: a recipe that would have made another one is not taken in silence.
        """
        if self.has_trained:
            return False
        keys = [line.partition(":")[0].split(".") for line in differences]
        if self.begun and ["seed"] in keys:  # models and adapters are drawn by it
            return False
        return not any(
            key[0] == "policies" and len(key) > 2 and key[1] in self.begun and key[2] in OF_VERSION_0 for key in keys
        )


def read_progress(address: RunAddress, recipe: Recipe) -> RunProgress:
    """Return how far a run has come, by its recipe. Raises KafkaAway and KafkaRefused."""
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
