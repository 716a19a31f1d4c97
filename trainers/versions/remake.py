"""Remakes versions from a checkpoint and the batches after it, for a resume and for `headrace retrain`.

With an equal `Learner.fingerprint` and the original settings, the results have the same bits.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import transformers

from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import Run
from headrace.infra.store.object_sources import ObjectSource
from headrace.infra.weights.files import write_files
from headrace.infra.weights.tensors import hash_weights
from headrace.schemas.records import BatchTrained, CheckpointPointer, NamedObject
from headrace.schemas.topics import policy_variant_of
from headrace.trainers.batches.groups import DecodedGroup, build_batch_sequences, prepare_group
from headrace.trainers.batches.trained_groups import LineageBroken, read_trained_groups
from headrace.trainers.learner.backends.group import build_learner
from headrace.trainers.learner.checkpoint import CheckpointError, decode_checkpoint
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.lora import Adapter, load_base
from headrace.trainers.learner.model import empty_model
from headrace.trainers.learner.shard_index import Index, decode_index
from headrace.trainers.learner.step_metrics import StepMetrics


@dataclass(frozen=True, slots=True)
class Remade:
    """A remade version."""

    batch: BatchTrained
    """The version's record on the log."""
    groups: list[DecodedGroup]
    metrics: StepMetrics


def load_learner_at(
    objects: ObjectSource, pointer: CheckpointPointer, files: tuple[NamedObject, ...], recipe: Recipe, variant: str = ""
) -> Learner:
    """Return a learner at a checkpoint, to continue with a recipe, as the same policy variant or another.

    `files` hold the model's config, and the base of its adapter if it has one. Raises ObjectMissing, ObjectCorrupt,
    WeightsError, FilesError, and CheckpointError if the checkpoint's weights do not match its pointer. The bits of a
    merged adapter depend on the fingerprint of the numerics, so under another than the pointer's they are not compared.
    """
    assert pointer.checkpoint is not None  # noqa: S101 - every pointer has one
    data = objects.get(pointer.checkpoint)
    state = decode_index(data) if pointer.parts else decode_checkpoint(data)
    lora = recipe.policies[pointer.policy].lora
    model = _build_model(objects, files, is_base=lora is not None)
    adapter = Adapter(model, lora, recipe.seed) if lora is not None else None
    settings = recipe.trainer_of(variant or policy_variant_of(pointer.policy, pointer.variant))
    learner = build_learner(model, settings, recipe.seed, adapter)
    if isinstance(state, Index):
        learner.load_stored(objects, state, pointer.parts)
    else:
        learner.load_state(state)
    is_merged = adapter is not None and adapter.is_merged
    is_comparable = not is_merged or learner.fingerprint() == pointer.fingerprint
    found = hash_learner(learner) if is_comparable else pointer.weights_hash
    if (learner.version, found) != (pointer.version, pointer.weights_hash):
        what, has, named = "weights have the hash", found, pointer.weights_hash
        if learner.version != pointer.version:
            what, has, named = "version is", str(learner.version), str(pointer.version)
        raise CheckpointError(
            f"the checkpoint {pointer.checkpoint.key} does not match its record on the topic `state`: its {what} {has} "
            f"and not {named}"
        )
    return learner


def hash_learner(learner: Learner) -> str:
    """Return the hash of the learner's published weights."""
    return hash_weights(learner.snapshot_weights())


def remake(
    run: Run, policy_variant: str, learner: Learner, batches: Sequence[BatchTrained], recipes: Sequence[Recipe]
) -> Iterator[Remade]:
    """Train the learner again on these batches of a run, and yield each remade version.

    Args:
        run: The run whose curated topic holds the groups.
        policy_variant: The policy or shadow that the batches trained.
        learner: A learner at the version before the first batch.
        batches: Consecutive versions.
        recipes: Recipes by revision number.

    Raises LineageBroken if a version or one of its groups is no longer on the topics, and the errors of `Learner.step`.
    """
    return train_again(read_trained_groups(run, policy_variant, batches), policy_variant, learner, recipes)


def train_again(
    batches: Iterable[tuple[BatchTrained, list[DecodedGroup]]],
    policy_variant: str,
    learner: Learner,
    recipes: Sequence[Recipe],
) -> Iterator[Remade]:
    """Train the learner on batches with their groups; see `remake`."""
    for batch, groups in batches:
        if batch.version != learner.version + 1:
            raise LineageBroken(
                f"version {learner.version + 1} of {policy_variant} cannot be trained again: the next recorded batch "
                f"is of version {batch.version}. Were records of the topic `batches` deleted?"
            )
        recipe = recipes[batch.revision]
        settings = recipe.trainer_of(policy_variant)
        learner.apply_settings(settings, recipe.seed)
        sequences = build_batch_sequences(map(prepare_group, groups), settings)
        yield Remade(batch, groups, learner.step(sequences, batch.version))


def _build_model(
    objects: ObjectSource, files: tuple[NamedObject, ...], *, is_base: bool
) -> transformers.PreTrainedModel:
    """Return a model of the published config: the adapter's base, or else a model with arbitrary weights."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(files, Path(folder), objects.get)
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        model = empty_model(config)
        if is_base:
            load_base(model, Path(folder))
    return model
