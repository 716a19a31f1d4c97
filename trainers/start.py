"""Starts a trainer: makes and publishes version 0 once, or resumes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import structlog
import transformers

from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.failpoints import reach
from headrace.infra.kafka.topic_reader import find_start_positions
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.process.signals import MustRestart, StopRequested
from headrace.infra.recipe.plug_in_sources import check_sources, trainer_plug_ins
from headrace.infra.recipe.settings import Policy, Recipe
from headrace.infra.run.run import Run
from headrace.infra.weights.tensors import WeightsError
from headrace.schemas.records import NamedObject
from headrace.schemas.topics import policy_of, variant_of
from headrace.trainers.batches.estimator import check_advantage
from headrace.trainers.kept_warm_starts import KeptWarmStart
from headrace.trainers.learner.backends.group import build_learner
from headrace.trainers.learner.checkpoint import CHECKPOINT_FILE, CheckpointError, decode_checkpoint
from headrace.trainers.learner.chosen_loss import check_loss
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.lora import Adapter
from headrace.trainers.learner.model import (
    build_model,
    character_tokenizer,
    encode_model_files,
    load_model,
    pin_threads,
)
from headrace.trainers.learner.warm_start import (
    PromptAndCompletion,
    WarmStartSettings,
    describe_measurement,
    warm_start,
)
from headrace.trainers.versions.heartbeat import open_heartbeat
from headrace.trainers.versions.history import History, read_history, wait_for_examples
from headrace.trainers.versions.publisher import (
    VersionAnnouncer,
    VersionUploader,
    WindowMark,
    store_checkpoint,
    upload_files,
)
from headrace.trainers.versions.remake import load_learner_at
from headrace.trainers.versions.resume import ResumedTrainer, resume

log = structlog.get_logger()

SHADOW_LOOK_EVERY_S = 0.5
"""Seconds between two checks of a shadow whether its policy has begun."""


class NoCheckpoint(HeadraceError):
    """The policy has versions but no checkpoint to resume from."""


def begin_or_resume(
    run: Run, policy_variant: str, writer: TransactionalWriter, stop: threading.Event
) -> ResumedTrainer:
    """Return a trainer's state: from version 0, made and published here, or from the newest checkpoint.

    Raises UsageError for an unknown estimator in the recipe, OtherSource or SourceChanged if its source is not the
    run's, StopRequested, NoCheckpoint, and the errors of `resume` and `warm_start`.
    """
    pin_threads()
    check_sources(run.plug_ins, trainer_plug_ins(run.recipe.trainer_of(policy_variant)))
    check_advantage(run.recipe, policy_variant)
    check_loss(run.recipe, policy_variant)
    history = read_history(run, policy_variant, recent=True)
    if history.checkpoint is not None:
        resumed = resume(run, policy_variant, history, stop)
        _publish_unpublished(resumed, history, writer, stop)
        return resumed
    if history.published is not None or history.last is not None:
        raise NoCheckpoint(
            f"{policy_variant} already has versions, but {run.topics.state} holds no checkpoint of it: were records of "
            "this topic deleted? The trainer cannot resume; begin a new run"
        )
    if variant_of(policy_variant):
        return _begin_shadow(run, policy_variant, writer, stop)
    return _begin(run, policy_variant, writer, stop)


def _publish_unpublished(
    resumed: ResumedTrainer, history: History, writer: TransactionalWriter, stop: threading.Event
) -> None:
    """Publish the newest version if it is unpublished, because the last trainer died before the next version.

    This is needed after the end of a run, when no next version comes. In a new epoch too: if workers stayed more than
    `max_staleness` versions behind, all their groups would expire, and no next version would ever come.
    """
    learner = resumed.learner
    assert history.published is not None  # noqa: S101 - published with the first checkpoint
    if learner.version <= history.published.version:
        return
    event = resumed.uploader.upload_version(
        learner.snapshot_weights(), learner.version, epoch=resumed.epoch, given_up=stop
    )
    resumed.announcer.announce(writer, event)
    # Published at a resume, as an earlier process had trained it but not published it.
    log.info("version.published", policy=event.policy, version=event.version)


def _begin(run: Run, policy: str, writer: TransactionalWriter, stop: threading.Event) -> ResumedTrainer:
    """Make and publish version 0. Raises CheckpointError if a checkpoint beside the model is of another model."""
    settings = run.recipe.policies[policy]
    model, tokenizer = build_first_model(settings, run.recipe.seed)
    if settings.warm_start is not None:
        _warm_start(run, policy, model, tokenizer, stop)
    seed = run.recipe.seed
    adapter = Adapter(model, settings.lora, seed) if settings.lora is not None else None
    base = adapter.files() if adapter is not None else {}
    files = upload_files(run, {**encode_model_files(model, tokenizer), **base}, stop)
    learner = build_learner(model, run.recipe.trainer_of(policy), seed, adapter)
    kept = settings.folder / CHECKPOINT_FILE
    if settings.path and kept.exists():
        load_kept_state(learner, kept)
    return _publish_first(run, policy, learner, files, writer, stop)


def load_kept_state(learner: Learner, file: Path) -> None:
    """Load the checkpoint beside a model's weights. Raises CheckpointError or WeightsError, which names the file."""
    try:
        learner.load_state(decode_checkpoint(file.read_bytes()))
    except (CheckpointError, WeightsError) as error:
        raise type(error)(
            f"{file} cannot be loaded: {error}. Remove this file, to begin with the weights in its folder "
            "and a new optimizer"
        ) from error


def _begin_shadow(run: Run, shadow: str, writer: TransactionalWriter, stop: threading.Event) -> ResumedTrainer:
    """Start a shadow from version 0 of its policy, which `headrace gc` keeps for ever. Raises StopRequested."""
    policy, was_logged = policy_of(shadow), False
    while True:
        beside = read_history(run, policy)
        if 0 in beside.checkpoints and beside.published is not None:
            break
        if not was_logged:
            log.info("shadow.waits", line=shadow, what=f"version 0 of {policy}")
            was_logged = True
        if stop.wait(SHADOW_LOOK_EVERY_S):
            raise StopRequested(f"stopped while waiting for version 0 of {policy}")
    learner = load_learner_at(run, beside.checkpoints[0], beside.files, run.recipe, shadow)
    return _publish_first(run, shadow, learner, beside.files, writer, stop)


def _publish_first(
    run: Run,
    policy_variant: str,
    learner: Learner,
    files: tuple[NamedObject, ...],
    writer: TransactionalWriter,
    stop: threading.Event,
) -> ResumedTrainer:
    """Publish version 0 with checkpoint 0, in one transaction."""
    uploader, announcer = VersionUploader(run, policy_variant, files), VersionAnnouncer(run, policy_variant)
    event = uploader.upload_version(learner.snapshot_weights(), 0, given_up=stop)
    pointer = store_checkpoint(run, policy_variant, learner, WindowMark(learner.version, 0, event.weights_hash), stop)
    if read_history(run, policy_variant) != History():
        # To begin over existing versions would destroy the run; a second check takes only a tenth of a second.
        raise MustRestart(
            f"records of an earlier trainer of {policy_variant} have appeared on its topics: the trainer starts again, "
            "and resumes from them"
        )
    announcer.announce(writer, event, pointer)
    # Version 0 is published.
    log.info(
        "policy.started",
        policy=policy_variant,
        weights_hash=event.weights_hash[:12],
        parameters=_count_parameters(learner.model),
    )
    positions = find_start_positions(run.connection, [run.topics.curated(policy_variant)])
    return ResumedTrainer(learner, uploader, announcer, 0, event.weights_hash, positions)


def build_first_model(
    settings: Policy, seed: int
) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    """Return a policy's model before any warm start, and its tokenizer. Raises ModelError."""
    if settings.path:
        return load_model(settings.folder)
    tokenizer = character_tokenizer(settings.alphabet)
    return build_model(settings.model, tokenizer, seed=seed), tokenizer


def _fetch_examples(run: Run, policy: str, stop: threading.Event) -> list[PromptAndCompletion]:
    claim = wait_for_examples(run, policy, stop).examples
    assert claim is not None  # noqa: S101 - the feeder always sets the claim
    return [PromptAndCompletion(**json.loads(line)) for line in run.get(claim).decode().splitlines()]


def plan_warm_start(
    recipe: Recipe, policy: str, examples: list[PromptAndCompletion]
) -> tuple[WarmStartSettings, tuple[list[PromptAndCompletion], list[PromptAndCompletion]]]:
    """Return the settings of a policy's warm start, and its examples for training and for measuring.

    Raises UsageError for fewer than two different examples.
    """
    settings = recipe.policies[policy].warm_start
    assert settings is not None  # noqa: S101 - the caller asked
    # Split by content: a problem that is drawn twice is used either for training or for measuring.
    distinct = {example.content: example for example in examples}
    cut = max(1, min(settings.held_out, len(distinct) // 4))
    apart = dict(list(distinct.items())[:cut])
    to_learn_from = [example for example in examples if example.content not in apart]
    if not to_learn_from:
        raise UsageError(
            f"policies.{policy}.warm_start needs at least two different worked examples, one of which is held out, but "
            f"the environment gave {len(distinct)}: give it more data for worked examples, or leave warm_start out"
        )
    warm = WarmStartSettings(
        low=settings.reward_low,
        high=settings.reward_high,
        learning_rate=settings.learning_rate,
        batch_size=settings.batch,
        max_steps=settings.max_steps,
        max_new_tokens=recipe.rollout.max_tokens,
        seed=recipe.seed,
    )
    return warm, (to_learn_from, list(apart.values()))


def _warm_start(
    run: Run,
    policy: str,
    model: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    stop: threading.Event,
) -> None:
    """Train the model in place on the feeder's worked examples, or load the cached result of the same training.

    Raises StopRequested between two steps.
    """
    warm, examples = plan_warm_start(run.recipe, policy, _fetch_examples(run, policy, stop))
    with open_heartbeat(run, policy, "warming up") as beat:

        class Reported(KeptWarmStart):
            """Reports the progress, and stops on request."""

            def after_step(self, step: int, reward: float | None) -> None:
                if stop.is_set():
                    raise StopRequested(f"stopped after {step} steps of the warm start")
                reach("train.warm_start_step")
                if reward is None:
                    return
                beat(describe_measurement(step, reward, warm))

        beat(f"{len(examples[0])} worked examples")
        kept = Reported(model, tokenizer, examples, warm)
        taken = kept.load_into_model()
        if taken is None:
            taken = warm_start(model, tokenizer, *examples, warm, kept)
            kept.keep(taken)
            # `reward` is the exact match reached.
            log.info("warm_start.done", policy=policy, steps=taken.steps, reward=round(taken.reward, 3))
        else:
            # From an equal warm start in this machine's cache.
            log.info("warm_start.taken", policy=policy, steps=taken.steps, reward=round(taken.reward, 3))


def _count_parameters(model: transformers.PreTrainedModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
