"""`headrace retrain --into NAME`: other settings over exactly the same batches, as a run of its own, without a rollout.

The new run is on the cluster and in the store of its source. It begins at one of the source's checkpoints, and its
versions have the numbers of the source's. Each is one transaction, as a trainer's are, so the same command continues an
interrupted experiment.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import fmean

from headrace.infra.errors import HeadraceError, UsageError
from headrace.infra.kafka.clients import Outgoing, RunAddress
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.progress import ReportProgress
from headrace.infra.recipe.plug_in_sources import hash_sources, trainer_plug_ins
from headrace.infra.recipe.recipe_file import change_recipe
from headrace.infra.recipe.settings import Recipe
from headrace.infra.recipe.trainer_words import check_trainer_words, select_trainer_words
from headrace.infra.run.revisions import build_revision, find_differences, read_known_revisions, write_revision
from headrace.infra.run.run import Run, find_groups_run, join, read_revisions
from headrace.ops.offline.retrain import ComparedVersion, Fingerprints, VersionSpan, cut_into_stretches, restore_learner
from headrace.schemas import codec
from headrace.schemas.ids import now_ms
from headrace.schemas.records import BatchTrained, RecipeRevision, WeightsPublished
from headrace.schemas.topics import policy_of, variant_of
from headrace.trainers.batches.estimator import check_advantage
from headrace.trainers.learner.backends.group import fingerprint_here
from headrace.trainers.learner.chosen_loss import check_loss
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.model import pin_threads
from headrace.trainers.learner.step_metrics import group_metrics, sampling_version
from headrace.trainers.versions.history import History, read_history
from headrace.trainers.versions.publisher import VersionAnnouncer, VersionUploader, WindowMark, store_checkpoint
from headrace.trainers.versions.remake import Remade, hash_learner, remake

EXPERIMENT_ENDED = "steps"
"""Why an experiment is over: it has made all requested versions."""
COMPARED = (
    "loss", "kl_k3", "clip_fraction", "ratio_mean", "entropy", "grad_norm_mean", "grad_norm_max", "learning_rate",
)  # fmt: skip
"""Metrics of a step that depend on the settings."""

Changes = tuple[str, Sequence[str]]
"""Name of the new run, and the settings as `trainer.key=value` words."""


@dataclass(frozen=True, slots=True)
class ComparedMetric:
    """A metric of both runs: its mean over the versions, and its value at the last version."""

    source_mean: float
    source_last: float
    into_mean: float
    into_last: float


@dataclass(frozen=True, slots=True)
class Experiment:
    """A new run, trained with other settings on the batches of another run."""

    run: str
    """The run whose batches it was trained on."""
    into: str
    """The new run."""
    policy: str
    from_: int
    """Version of the checkpoint that the experiment began at."""
    to: int
    comparable: bool
    fingerprint: Fingerprints
    settings: tuple[str, ...]
    """The settings that differ, as `key: before -> now`."""
    metrics: dict[str, ComparedMetric]
    versions: tuple[ComparedVersion, ...]
    ok: bool


def train_experiment(
    run: Run,
    policy: str | None,
    changes: Changes,
    span: VersionSpan,
    tell: ReportProgress = lambda _done, _total: None,
) -> Experiment:
    """Train a run's batches with other settings into a new run.

    Raises UsageError if the new run exists already, unless it is this experiment after an interruption.
    """
    name, (into, sets) = run.resolve(policy), changes
    source = read_history(run, name)
    parts = cut_into_stretches(source, span, f"policy {name} of run {run.address.run}")
    assert source.published is not None  # noqa: S101 - it came with the first checkpoint
    pin_threads(int(parts[0].fingerprint.get("threads", "0")))
    target = _prepare_run(run, name, into, sets)
    batches = [batch for part in parts for batch in part.batches]
    with closing(TransactionalWriter(target.connection, f"{into}.retrain.{name}", target.topic_names)) as writer:
        uploader, announcer = VersionUploader(target, name, source.files), VersionAnnouncer(target, name)
        _make_versions(run, source, _Output(target, name, uploader, announcer, writer), batches, tell)
    _write_end(target)
    made = {batch.version: batch for batch in read_history(target, name).batches}
    pairs = [(batch, made[batch.version].weights_hash) for batch in batches]
    here = fingerprint_here(target.recipe.trainer_of(name))
    changed = find_differences(run.recipe, target.recipe)
    return Experiment(
        run=run.address.run,
        into=into,
        policy=name,
        from_=batches[0].version - 1,
        to=batches[-1].version,
        comparable=True,
        fingerprint=Fingerprints(parts[0].fingerprint, here),
        settings=tuple(line for line in changed if not line.startswith("name: ")),
        metrics=compare_metrics(batches, [made[batch.version] for batch in batches]),
        versions=tuple(
            ComparedVersion(b.version, b.epoch, b.weights_hash, got, got == b.weights_hash) for b, got in pairs
        ),
        ok=True,
    )


def compare_metrics(source: Sequence[BatchTrained], into: Sequence[BatchTrained]) -> dict[str, ComparedMetric]:
    """Return the metrics of the source and of the new run, as means over the versions and at the last version.

    Rewards are left out: nothing was played, so both runs have the rewards of the source's groups.
    """
    known = [name for name in COMPARED if all(name in batch.metrics for batch in (*source, *into))]
    return {name: ComparedMetric(*_mean_and_last(source, name), *_mean_and_last(into, name)) for name in known}


def _mean_and_last(batches: Sequence[BatchTrained], name: str) -> tuple[float, float]:
    return fmean(batch.metrics[name] for batch in batches), batches[-1].metrics[name]


# ------------------------------------------------------------------------------------------------------------ the run


def _prepare_run(run: Run, policy: str, into: str, sets: Sequence[str]) -> Run:
    """Return the new run, after writing its missing topics and recipe revisions: one for each of the source's."""
    check_trainer_words(sets)
    *earlier, newest = run.revisions
    recipes = [change_recipe(recipe, into, select_trainer_words(recipe, sets)) for recipe in earlier]
    recipes.append(change_recipe(newest, into, sets))
    trained = [recipe for recipe in recipes if policy in recipe.policy_variants]  # a later revision may have added it
    for recipe in trained:
        check_advantage(recipe, policy)
        check_loss(recipe, policy)
    address = RunAddress(run.connection, into)
    before = read_known_revisions(address)
    _refuse_others(before, run, recipes)
    topics = recipes[-1].topics
    ensure_topics(address.connection, recipes[-1].topic_specs)
    run_id = before[0].run_id if before else f"{into}-{secrets.token_hex(4)}"
    store = read_revisions(run.address)[-1].store
    known = {revision.revision for revision in before}
    for number, recipe in enumerate(recipes):
        if number in known:
            continue
        plug_ins = hash_sources(trainer_plug_ins(recipe.trainer_of(policy))) if recipe in trained else {}
        revision = replace(build_revision(run_id, number, recipe, store), source=run.address.run, plug_ins=plug_ins)
        write_revision(address.connection, topics.recipe, revision)
    return join(address)


def _refuse_others(before: Sequence[RecipeRevision], run: Run, recipes: Sequence[Recipe]) -> None:
    """Raise UsageError if the new run exists, unless it is this experiment after an interruption."""
    if not before:
        return
    name = recipes[0].name
    if before[0].source != run.address.run:
        raise UsageError(f"there is already a run {name}: give the experiment another name by --into")
    if before[-1].ended:
        raise UsageError(f"the experiment {name} is already complete: give another name by --into")
    for revision in before:
        differing = find_differences(Recipe.from_json(revision.recipe), recipes[revision.revision])
        if differing:
            raise UsageError(
                f"the experiment {name} was begun with other settings, and is not complete:\n"
                + "\n".join(f"  {line}" for line in differing)
                + "\nGive the earlier settings to continue it, or another name by --into"
            )


def _write_end(target: Run) -> None:
    newest = read_revisions(target.address)[-1]
    ended = replace(newest, ended=EXPERIMENT_ENDED, created_ms=now_ms())
    write_revision(target.connection, target.topics.recipe, ended)


# ------------------------------------------------------------------------------------------------------------ versions


@dataclass(frozen=True, slots=True)
class _Output:
    """Writes the versions, each in one transaction."""

    run: Run
    policy: str
    uploader: VersionUploader
    announcer: VersionAnnouncer
    writer: TransactionalWriter

    def write(self, event: WeightsPublished, outgoing: Sequence[Outgoing]) -> None:
        self.announcer.announce(self.writer, event, *outgoing)

    def checkpoint(self, learner: Learner, weights_hash: str) -> Outgoing:
        return store_checkpoint(self.run, self.policy, learner, WindowMark(learner.version, 0, weights_hash))

    def upload_version(self, learner: Learner) -> WeightsPublished:
        """Upload the weights; return their event."""
        return self.uploader.upload_version(learner.snapshot_weights(), learner.version)


def _make_versions(
    source: Run, history: History, output: _Output, batches: Sequence[BatchTrained], tell: ReportProgress
) -> None:
    """Make the versions that the new run lacks."""
    run, policy = output.run, output.policy
    past = read_history(run, policy)
    start = batches[0].version - 1
    if past.checkpoints and min(past.checkpoints) != start:
        raise UsageError(
            f"the experiment {run.address.run} was begun from version {min(past.checkpoints)}, not from {start}: give "
            f"--from {min(past.checkpoints)} to continue it, or another name by --into"
        )
    pointer = past.checkpoint or history.checkpoints[start]
    recipe, files = run.revisions[batches[0].revision], output.uploader.files
    if past.checkpoint is None:
        learner = restore_learner(run, pointer, files, recipe)
    else:
        learner = restore_learner(run, pointer, files, recipe, "begin a new experiment with another name by --into")
    base_hash = hash_learner(learner)  # of a merged adapter the bits here, which may not be those of the pointer
    if past.checkpoints:
        _check_same(run, learner, pointer.weights_hash)
    else:
        output.write(output.upload_version(learner), [output.checkpoint(learner, base_hash)])
    made = {batch.version: batch.weights_hash for batch in past.batches}
    rest = [batch for batch in batches if batch.version > learner.version]
    for done, remade in enumerate(remake(find_groups_run(source), policy, learner, rest, run.revisions), 1):
        if learner.version in made:
            _check_same(run, learner, made[learner.version])
        else:
            last = remade.batch is rest[-1]
            output.write(*_build_records(output, learner, remade, base_hash, last=last))
        base_hash = hash_learner(learner)
        tell(done, len(rest))


def _build_records(
    output: _Output, learner: Learner, remade: Remade, base_hash: str, *, last: bool
) -> tuple[WeightsPublished, list[Outgoing]]:
    """Return the event and the other records of a version: the source's batch, with the result of the new run."""
    run, policy, batch = output.run, output.policy, remade.batch
    event = output.upload_version(learner)
    settings = run.revisions[batch.revision].trainer_of(policy)
    base = sampling_version(settings, remade.groups, batch.version)
    record = BatchTrained(
        run_id=run.run_id,
        policy=policy_of(policy),
        variant=variant_of(policy),
        version=batch.version,
        revision=batch.revision,
        groups=batch.groups,
        base_hash=base_hash,
        weights_hash=event.weights_hash,
        fingerprint=learner.fingerprint(),
        metrics={**remade.metrics, **group_metrics(remade.groups, base)},
        created_ms=now_ms(),
    )
    key = f"{batch.version}".encode()
    outgoing = [Outgoing(run.topics.batches(policy), codec.encode(record), key, partition=0)]
    if last or batch.version % settings.checkpoint_every == 0:
        outgoing.append(output.checkpoint(learner, event.weights_hash))
    return event, outgoing


def _check_same(run: Run, learner: Learner, expected: str) -> None:
    if hash_learner(learner) != expected:
        raise HeadraceError(
            f"version {learner.version} of the experiment {run.address.run} differs from the version made before the "
            "interruption: continue on the machine that began it, or begin a new experiment by --into"
        )
