"""The start of training on an archive: the oldest checkpoint of an archive, or a folder of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from headrace.infra.archive.reading import Archive, is_archive
from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Recipe, TrainerSettings
from headrace.infra.store.object_store import Content, ObjectCorrupt, ObjectMissing
from headrace.infra.weights.files import TOKENIZER_FILE, choose_files_to_serve, is_adapter
from headrace.infra.weights.tensors import WeightsError
from headrace.ops.offline.archived_groups import read_history
from headrace.schemas.records import NamedObject
from headrace.trainers.batches.trained_groups import LineageBroken
from headrace.trainers.learner.backends.group import build_learner
from headrace.trainers.learner.checkpoint import CheckpointError
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.lora import Adapter
from headrace.trainers.learner.model import encode_model_files, load_model
from headrace.trainers.start import build_first_model
from headrace.trainers.versions.remake import load_learner_at

ELSEWHERE = "give `headrace offline train --start` another archive with weights, or a folder in Hugging Face's layout"
HOW = f"add checkpoints to it with `headrace archive --with-weights`, or {ELSEWHERE}"


@dataclass(frozen=True, slots=True)
class Start:
    """A learner that has trained nothing here yet, and the files that belong to its weights."""

    learner: Learner
    files: Mapping[str, bytes]
    """Name to contents of config, tokenizer, and an adapter's base."""
    origin: str
    """Origin of the weights, in words."""

    @property
    def tokenizer_hash(self) -> str:
        """BLAKE3 of the tokenizer; empty if there is none."""
        return blake3(self.files[TOKENIZER_FILE]).hexdigest() if TOKENIZER_FILE in self.files else ""

    @property
    def is_adapter(self) -> bool:
        """Whether the learner's weights are only an adapter."""
        return is_adapter(self._name_files())

    def files_to_serve(self) -> dict[str, bytes]:
        """Return the files that belong to the weights."""
        return {file.name: self.files[file.name] for file in choose_files_to_serve(self._name_files())}

    def _name_files(self) -> list[NamedObject]:
        return [NamedObject(name) for name in self.files]


def load_start(archive: Archive, policy: str, recipe: Recipe, folder: str | None) -> Start:
    """Return the start: `folder`, which is an archive or a folder of weights, or by default the archive itself.

    The start in an archive is its oldest checkpoint. If it has none, it is the model that its recipe names, unless that
    was warmed up.

    Raises:
        UsageError: There is no such folder, or nothing to begin with.
        LineageBroken: The checkpoint cannot be read.
    """
    source = archive if folder is None else Archive(folder) if is_archive(folder) else None
    found = _start_at_oldest_checkpoint(source, policy, recipe) if source is not None else None
    if found is not None:
        return found
    if source is not None and folder is not None:
        raise UsageError(f"the archive {folder} holds no checkpoint of policy {policy}: {HOW}")
    return _start_from_model(archive, policy, recipe, folder)


def _start_at_oldest_checkpoint(source: Archive, policy: str, recipe: Recipe) -> Start | None:
    history = read_history(source, policy)
    if not history.checkpoints or not history.files:
        return None
    pointer = history.checkpoints[min(history.checkpoints)]
    try:
        learner = load_learner_at(source, pointer, history.files, recipe)
        files = {file.name: source.get(file.claim) for file in history.files if file.claim is not None}
    except (ObjectMissing, ObjectCorrupt, WeightsError, CheckpointError) as error:
        raise LineageBroken(
            f"the checkpoint of version {pointer.version} in {source.root} cannot be read ({error}): {ELSEWHERE}"
        ) from error
    return Start(learner, files, f"the checkpoint of version {pointer.version} in {source.root}")


def _start_from_model(archive: Archive, policy: str, recipe: Recipe, folder: str | None) -> Start:
    if folder is None and recipe.policies[policy].warm_start is not None:
        raise UsageError(
            f"the archive {archive.root} holds no checkpoint of policy {policy}, and its warm start cannot be repeated "
            f"here: {HOW}"
        )
    return start_from_model(recipe, policy, recipe.trainer_of(policy), folder)


def start_from_model(recipe: Recipe, policy: str, trainer: TrainerSettings, folder: str | None = None) -> Start:
    """Return the start of a policy without a warm start: the model that a recipe names, or the one in a folder.

    Raises UsageError.
    """
    settings = recipe.policies[policy]
    if folder is not None:
        model, tokenizer = load_model(Path(folder))
        origin = f"the weights in {folder}"
    else:
        model, tokenizer = build_first_model(settings, recipe.seed)
        origin = f"the model {settings.path}" if settings.path else f"a new model, seed {recipe.seed}"
    adapter = Adapter(model, settings.lora, recipe.seed) if settings.lora is not None else None
    base = adapter.files() if adapter is not None else {}
    files = {**encode_model_files(model, tokenizer), **{name: _join_parts(content) for name, content in base.items()}}
    return Start(build_learner(model, trainer, recipe.seed, adapter), files, origin)


def _join_parts(content: Content) -> bytes:
    return bytes(content) if isinstance(content, bytes | memoryview) else b"".join(content)
