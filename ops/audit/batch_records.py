"""Compares the facts in batch records with the recipe, the curated topic and the checkpoints. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.infra.recipe.settings import Recipe, TrainerSettings


class BatchFacts(NamedTuple):
    """The facts in the batch record of one version."""

    version: int
    epoch: int
    revision: int
    groups: int
    fingerprint: Mapping[str, str]
    where: str


class BatchRecords:
    """The batches of one policy or shadow, in the order of the topic.

    Args:
        variant: Policy or shadow.
        revisions: All recipes of the run, by revision.
    """

    def __init__(self, variant: str, revisions: Sequence[Recipe]) -> None:
        self._variant = variant
        self._trainers = [one.trainer_of(variant) if variant in one.policy_variants else None for one in revisions]
        self._before: BatchFacts | None = None
        self._wrong: list[str] = []
        self._checkpoints: dict[int, str] = {}
        """Versions that must have a checkpoint by the recipe, to the positions of their batches."""

    def fold_batch(self, facts: BatchFacts) -> None:
        """Take in the batch of a version."""
        before, self._before = self._before, facts
        name = f"version {facts.version} of {self._variant}"
        if before is not None and before.epoch == facts.epoch and before.fingerprint != facts.fingerprint:
            self._wrong.append(
                f"{name} has another numerics fingerprint than the version before it, so it must begin a new epoch, "
                f"but its epoch is {facts.epoch} too: {facts.where}"
            )
        if before is not None and facts.revision < before.revision:
            self._wrong.append(
                f"{name} was trained under recipe revision {facts.revision}, but the version before it was trained "
                f"under the later revision {before.revision}: {facts.where}"
            )
        trainer = self._find_trainer(facts.revision)
        if trainer is None:
            self._wrong.append(
                f"{name} was trained under recipe revision {facts.revision}, which is missing or does not name "
                f"{self._variant}: {facts.where}"
            )
            return
        if facts.groups > trainer.groups_per_batch:
            self._wrong.append(
                f"{name} was trained from a batch of {facts.groups} groups, but trainer.groups_per_batch of recipe "
                f"revision {facts.revision} is {trainer.groups_per_batch}: {facts.where}"
            )
        if facts.version % trainer.checkpoint_every == 0 or facts.version == trainer.steps:
            self._checkpoints[facts.version] = facts.where

    def is_last(self, version: int, revision: int) -> bool:
        """Return whether a version is the last one by a recipe revision."""
        trainer = self._find_trainer(revision)
        return trainer is not None and version == trainer.steps

    def _find_trainer(self, revision: int) -> TrainerSettings | None:
        """Return the trainer's settings by a recipe revision; None if it is missing or does not name the variant."""
        return self._trainers[revision] if 0 <= revision < len(self._trainers) else None

    def problems(self, checkpoints: Iterable[int]) -> Iterator[str]:
        """Yield what is wrong.

        Args:
            checkpoints: Versions that have a checkpoint pointer, read after the batches.
        """
        yield from self._wrong
        there = set(checkpoints)
        if self._before is not None and 0 not in there:
            yield f"version 0 of {self._variant} has no checkpoint record on `state`, although nothing may delete it"
        for version, where in self._checkpoints.items():
            if version not in there:
                yield (
                    f"version {version} of {self._variant} has no checkpoint record on `state`, although its recipe "
                    f"revision asks for a checkpoint: {where}"
                )
