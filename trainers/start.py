"""Where a trainer's first weights come from, and how one that died comes back."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch
import transformers

from infra.kafka import open_producer
from infra.run import Run
from infra.settings import Policy, Trainer
from infra.transactions import TransactionalWriter
from infra.weights import is_plain_file_name
from schemas import codec
from schemas.records import CuratedGroup, NamedObject, TrajectoryGroup, WorkerStatus
from trainers import history as past
from trainers import publisher
from trainers.batch import TrainingSequence
from trainers.checkpoint import CheckpointError, decode_checkpoint
from trainers.groups import WholeGroup, training_sequences
from trainers.learner import Learner, LearnerSettings
from trainers.losses import Clip
from trainers.model import build_model, character_tokenizer, load_model, save_model_files
from trainers.warm_start import WarmStartSettings, WorkedExample, warm_start

log = structlog.get_logger()


@dataclass(slots=True)
class Incarnation:
    """A trainer's memory at the moment it begins or goes on."""

    learner: Learner
    files: tuple[NamedObject, ...]
    """Config and tokenizer, as every anchor names them."""
    epoch: int
    weights_hash: str
    """Of the learner's weights, as published."""
    history: past.History


def learner_settings(settings: Trainer, seed: int) -> LearnerSettings:
    """Translate the recipe's table."""
    return LearnerSettings(
        learning_rate=settings.learning_rate,
        warmup_versions=settings.warmup_versions,
        minibatches=settings.minibatches,
        tokens_per_micro_batch=settings.micro_batch_tokens,
        clip=Clip(settings.clip_low, settings.clip_high),
        gradient_clip=settings.grad_clip,
        weight_decay=settings.weight_decay,
        betas=settings.betas,
        seed=seed,
        device=settings.device,
    )


def begin_or_resume(run: Run, policy: str, writer: TransactionalWriter, stop: threading.Event) -> Incarnation:
    """Return a trainer's memory: from version 0, made and published here, or from the newest checkpoint."""
    history = past.read_history(run, policy)
    if history.checkpoint is None or history.published is None:
        return _begin(run, policy, writer, stop)
    return _resume(run, policy, history)


# ---------------------------------------------------------------------------------------------------------------- begin


def _begin(run: Run, policy: str, writer: TransactionalWriter, stop: threading.Event) -> Incarnation:
    """Make version 0 and publish it with checkpoint 0, in one transaction."""
    settings = run.recipe.policies[policy]
    model, tokenizer = _first_model(settings, run.recipe.seed)
    if settings.warm_start is not None:
        examples = _examples(run, policy, stop)
        _warm_start(run, policy, model, tokenizer, examples)
    learner = Learner(model, learner_settings(run.recipe.trainer_of(policy), run.recipe.seed))
    files = publisher.upload_files(run, save_model_files(model, tokenizer))
    stored = publisher.upload(run, publisher.encode(publisher.snapshot(learner)))
    event = publisher.announce(run, policy, 0, stored, files)
    pointer = publisher.checkpoint(run, policy, learner, publisher.WindowMark(0, stored.weights_hash))
    writer.begin()
    writer.produce([event, pointer])
    writer.commit()
    log.info("policy.started", policy=policy, weights_hash=stored.weights_hash[:12], parameters=_size(model))
    return Incarnation(learner, files, 0, stored.weights_hash, past.read_history(run, policy))


def _first_model(
    settings: Policy, seed: int
) -> tuple[transformers.PreTrainedModel, transformers.PreTrainedTokenizerBase]:
    if settings.path:
        return load_model(Path(settings.path))
    tokenizer = character_tokenizer(settings.alphabet)
    return build_model(settings.model, tokenizer, seed=seed), tokenizer


def _examples(run: Run, policy: str, stop: threading.Event) -> list[WorkedExample]:
    claim = past.wait_for_examples(run, policy, stop).examples
    assert claim is not None  # noqa: S101 - the feeder always sets it
    return [WorkedExample(**json.loads(line)) for line in run.get(claim).decode().splitlines()]


def _warm_start(
    run: Run,
    policy: str,
    model: transformers.PreTrainedModel,
    tokenizer: transformers.PreTrainedTokenizerBase,
    examples: list[WorkedExample],
) -> None:
    settings = run.recipe.policies[policy].warm_start
    assert settings is not None  # noqa: S101 - the caller asked
    # Held out by content: a problem that is drawn twice is either learnt from or measured on.
    distinct = list(dict.fromkeys(examples))
    cut = max(1, min(settings.held_out, len(distinct) // 4))
    apart = set(distinct[:cut])
    warm = WarmStartSettings(
        low=settings.reward_low,
        high=settings.reward_high,
        learning_rate=settings.learning_rate,
        batch_size=settings.batch,
        max_steps=settings.max_steps,
        max_new_tokens=run.recipe.rollout.max_tokens,
        seed=run.recipe.seed,
    )
    to_learn_from = [example for example in examples if example not in apart]
    with _told(run, policy) as tell:

        def measured(step: int, reward: float) -> None:
            wanted = f"{settings.reward_low:.2f}-{settings.reward_high:.2f}"
            tell(f"held-out reward {reward:.2f} after {step} supervised steps, wanted {wanted}")

        tell(f"{len(to_learn_from)} worked examples")
        result = warm_start(model, tokenizer, to_learn_from, distinct[:cut], warm, measured)
    log.info("warm_start.done", policy=policy, steps=result.steps, reward=round(result.reward, 3))


@contextmanager
def _told(run: Run, policy: str) -> Iterator[Callable[[str], None]]:
    """Say on `workers` how the warm start goes: it is long, and nothing else of the run moves meanwhile."""
    producer = open_producer(run.connection, f"train.{policy}")
    name = f"train-{policy}"

    def tell(detail: str, state: str = "warming up") -> None:
        now = time.time_ns() // 1_000_000
        status = WorkerStatus(
            run_id=run.run_id, worker=name, state=state, detail=detail, pid=os.getpid(), updated_ms=now
        )
        producer.produce(run.topics.workers, codec.encode(status), name.encode(), 0)
        producer.poll(0)

    try:
        yield tell
    finally:
        tell("", "stopped")
        producer.flush(5)


def _size(model: transformers.PreTrainedModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# --------------------------------------------------------------------------------------------------------------- resume


def _resume(run: Run, policy: str, history: past.History) -> Incarnation:
    """Load the newest checkpoint and train the batches after it again, up to the last published version."""
    pointer, published = history.checkpoint, history.published
    assert pointer is not None  # noqa: S101 - the caller looked
    assert published is not None  # noqa: S101
    assert pointer.checkpoint is not None  # noqa: S101 - every pointer has one
    current = learner_settings(run.recipe.trainer_of(policy), run.recipe.seed)
    learner = Learner(_published_model(run, published.files), current)
    learner.load_state(decode_checkpoint(run.get(pointer.checkpoint)))
    again = [batch for batch in history.batches if batch.version > pointer.version]
    groups = past.groups_of(run, policy, again)
    log.info("trainer.resuming", policy=policy, checkpoint=pointer.version, versions=len(again))
    for batch in again:
        then = run.revisions[batch.revision]
        learner.use(learner_settings(then.trainer_of(policy), then.seed))
        curated = [groups[past.key_of(use)] for use in batch.groups]
        learner.step(batch_sequences(run, then.trainer_of(policy), curated), batch.version)
    learner.use(current)
    got = publisher.encode(publisher.snapshot(learner)).weights_hash
    epoch = published.epoch
    if got != published.weights_hash:
        epoch += 1
        log.warning(
            "trainer.chain_cut",
            policy=policy,
            version=published.version,
            expected=published.weights_hash,
            got=got,
            epoch=epoch,
            why="the same batches gave other weights here; training goes on under a new epoch",
        )
    return Incarnation(learner, published.files, epoch, got, history)


def _published_model(run: Run, files: tuple[NamedObject, ...]) -> transformers.PreTrainedModel:
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            if file.claim is None or not is_plain_file_name(file.name):
                raise CheckpointError(f"the newest published version names a file {file.name!r}")
            (Path(folder) / file.name).write_bytes(run.get(file.claim))
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    model: transformers.PreTrainedModel = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # transformers leaves it untyped
        config, dtype=torch.float32, attn_implementation="sdpa"
    )
    model.train(mode=False)
    return model


# --------------------------------------------------------------------------------------------------------------- shared


def batch_sequences(run: Run, settings: Trainer, curated: list[CuratedGroup]) -> list[TrainingSequence]:
    """Return the sequences of a batch, groups in order; groups behind a claim check are fetched."""
    sequences: list[TrainingSequence] = []
    for index, record in enumerate(curated):
        sequences += training_sequences(whole(run, record), index, settings)
    return sequences


def whole(run: Run, curated: CuratedGroup) -> WholeGroup:
    """Return a curated group with its trajectories."""
    group = codec.decode(curated.group, TrajectoryGroup)
    if group.claim is not None:
        group = codec.decode(run.get_group(group.claim), TrajectoryGroup)
    return WholeGroup(curated, group)
