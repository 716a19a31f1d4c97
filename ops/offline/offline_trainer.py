"""`headrace offline train`: trains on archived curated groups, with no broker, no store and no worker.

The archive's records come in logical order, and whenever the window holds a batch, the learner makes a version of it.
The age of a group is measured by the clock of the log (the newest head_version read so far), not by the number of the
version that is made. The versions made here are not the versions that sampled the groups, and their number may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from headrace.infra.archive.reading import Archive
from headrace.infra.environment import is_single_process
from headrace.infra.errors import UsageError
from headrace.infra.inflection import inflect
from headrace.infra.progress import ReportProgress
from headrace.infra.recipe.plug_in_sources import newest_sources, trainer_plug_ins, warn_of_differing_sources
from headrace.infra.recipe.recipe_file import change_recipe
from headrace.infra.recipe.settings import Recipe
from headrace.infra.recipe.trainer_words import check_trainer_words, select_trainer_words
from headrace.infra.run.revisions import find_differences, replace_experiment
from headrace.infra.weights.files import ADAPTER_WEIGHTS
from headrace.infra.weights.folder import write_adapter, write_weights
from headrace.infra.weights.tensors import hash_weights
from headrace.infra.whole_folder import write_new_folder
from headrace.ops.chosen_policy import choose_policy
from headrace.ops.offline.archived_recipe import read_recorded_revisions
from headrace.ops.offline.archived_start import Start, load_start
from headrace.ops.offline.offline_versions import (
    OfflineVersion,
    RecordCounts,
    RemadeVersion,
    batches_of_the_run,
    retrain_versions,
    train_versions,
)
from headrace.ops.plain_json import encode_json, plain
from headrace.trainers.batches.estimator import check_advantage
from headrace.trainers.learner.chosen_loss import check_loss
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.model import pin_threads

BATCHES, REPORT, VERSIONS = "batches.jsonl", "training.json", "versions"


@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """The options of `headrace offline train`, without the archive."""

    policy: str | None = None
    sets: Sequence[str] = ()
    """Changed settings as `trainer.key=value` words."""
    steps: int | None = None
    """The last version to make; None for `trainer.steps` of the recipe."""
    start: str | None = None
    """An archive or a folder of weights to begin at."""
    batches: bool = False
    """Whether to train the run's own batches, exactly as they were."""
    like: Recipe | None = None
    """Recipe whose trainer settings and seed are used; None for the archived recipe."""
    keep_every: int = 0
    """Also keep the weights of every N-th version, in `versions/N`; 0 for none."""


@dataclass(frozen=True, slots=True)
class Untrained:
    """Counts of the archived records that were not trained on."""

    read: int
    evicted: dict[str, int]
    """Number of evicted groups by verdict."""
    unusable: dict[str, int]
    """Number of records that would be dead letters in a run, by reason."""
    first_unusable: str
    """Position of the first of these, and why it is unusable; empty if there is none."""
    replays_lost: dict[str, int]
    """Number of replays among the evicted and unusable, by reason."""
    left: int
    """Number of groups that waited in the window at the end."""
    unread: int


@dataclass(frozen=True, slots=True)
class TrainedOffline:
    """The result of training on an archive."""

    out: str
    archive: str
    run: str
    run_id: str
    policy: str
    start: str
    """Origin of the first weights, in words."""
    batches: str
    """the run's own | cut anew."""
    settings: tuple[str, ...]
    """Settings that differ from the recipe's, as `key: before -> now`."""
    fingerprint: Mapping[str, str]
    """The software and hardware that decide the bits of the weights."""
    trained: int
    """Groups."""
    counts: Untrained | None
    """None for the run's own batches."""
    weights_hash: str
    versions: tuple[OfflineVersion, ...]

    def report(self) -> dict[str, object]:
        """Return the content of the report in the folder."""
        report = {one.name: getattr(self, one.name) for one in fields(self)}
        hash_, counts = report.pop("weights_hash"), report.pop("counts")
        del report["out"], report["versions"]
        found: dict[str, object] = plain({**report, **(plain(counts) or {}), "weights_hash": hash_})
        return found

    def to_json(self) -> Mapping[str, object]:
        """Return the folder, the content of its report, and the versions."""
        return {"out": self.out, **self.report(), "versions": self.versions}


def train_offline(
    source: str | Path, out: Path, request: TrainingRequest, tell: ReportProgress = lambda _done, _total: None
) -> TrainedOffline:
    """Train a policy on an archive into a new folder, which appears only when complete.

    The folder has the last weights in Hugging Face's layout, a line for each version in `batches.jsonl`, and the result
    in `training.json`. The same archive and settings give the same weights on every machine with the same fingerprint.

    Raises:
        UsageError: No such archive, policy or start; settings that do not work; too few groups for a batch.
        ArchiveCorrupt: A file differs from the manifest.
        LineageBroken: The archive lacks the start, or a group of a batch.
        FolderBusy: Another process makes `out`.
    """
    if not is_single_process():
        raise UsageError("offline training runs in one process, but several were started: start it without torchrun")
    archive = Archive(source)
    policy, before, recipes = _apply_settings(archive, request)
    batches = batches_of_the_run(archive, policy, request.steps) if request.batches else []
    with write_new_folder(out) as folder:
        pin_threads(int(batches[0].fingerprint.get("threads", "0")) if batches else 0)
        start, counts = load_start(archive, policy, recipes[-1], request.start), RecordCounts()
        if batches:
            made, most = retrain_versions(archive, policy, start.learner, recipes, batches), len(batches)
        else:
            made, most = (
                train_versions(archive, policy, start, counts),
                _count_possible_versions(archive, policy, start.learner),
            )
        kept = _write_weights(made, start, folder, request.keep_every)
        versions = _write_lines(folder / BATCHES, kept, lambda done: tell(done, most))
        if not versions:
            has_steps = request.steps is not None
            raise UsageError(_explain_no_version(archive, policy, start.learner, counts, has_steps=has_steps))
        found = TrainedOffline(
            out=str(out),
            archive=str(source),
            run=archive.manifest.run,
            run_id=archive.manifest.run_id,
            policy=policy,
            start=start.origin,
            batches="the run's own" if batches else "cut anew",
            settings=tuple(line for line in find_differences(before, recipes[-1]) if not line.startswith("name: ")),
            fingerprint=start.learner.fingerprint(),
            trained=sum(one.groups for one in versions),
            counts=None if batches else _summarize_untrained(counts, archive, policy),
            weights_hash=versions[-1].weights_hash,
            versions=tuple(versions),
        )
        _write(folder, start, found)
    return found


def _write_weights(made: Iterable[RemadeVersion], start: Start, folder: Path, every: int) -> Iterator[RemadeVersion]:
    """Yield the versions, and write the weights of the start and of every N-th version."""
    if every:
        write_model(start, folder / VERSIONS / str(start.learner.version))
    for one in made:
        if every and one.version % every == 0:
            write_model(start, folder / VERSIONS / str(one.version))
        yield one


def _write_lines(path: Path, made: Iterable[RemadeVersion], tell: Callable[[int], None]) -> list[OfflineVersion]:
    """Write a line for each version when it is made; return the versions with the number of their groups."""
    versions: list[OfflineVersion] = []
    with path.open("w") as file:
        for one in made:
            made_one = one.describe()
            file.write(encode_json({**plain(made_one), "groups": one.uses}, None) + "\n")
            versions.append(made_one)
            tell(len(versions))
    return versions


def _apply_settings(archive: Archive, request: TrainingRequest) -> tuple[str, Recipe, list[Recipe]]:
    """Return the policy, the newest recipe unchanged, and all revisions with the changed settings."""
    check_trainer_words(request.sets)
    recorded = read_recorded_revisions(archive)
    revisions = {one.revision: Recipe.from_json(one.recipe) for one in recorded}
    before = [revisions[number] for number in sorted(revisions)]
    policy = choose_policy(request.policy, tuple(before[-1].policies), "run")
    if archive.topics.curated(policy) not in archive.manifest.topics:
        raise UsageError(
            f"the archive {archive.root} holds no curated groups of policy {policy}: add them with `headrace archive "
            f"--topics curated.{policy}`, or make them with `headrace offline curate`"
        )
    asked = [replace_experiment(recipe, request.like) if request.like else recipe for recipe in before]
    changes = [_list_changes(recipe, policy, request) for recipe in asked]
    changes[:-1] = map(select_trainer_words, asked[:-1], changes[:-1])
    recipes = [change_recipe(recipe, recipe.name, words) for recipe, words in zip(asked, changes, strict=True)]
    for recipe in recipes:
        if policy in recipe.policies:
            check_advantage(recipe, policy)
            check_loss(recipe, policy)
    warn_of_differing_sources(newest_sources(recorded), trainer_plug_ins(recipes[-1].trainer_of(policy)))
    return policy, before[-1], recipes


def _list_changes(recipe: Recipe, policy: str, request: TrainingRequest) -> list[str]:
    if request.steps is None:
        return [*request.sets]
    has_own = policy in recipe.policies and "steps" in recipe.policies[policy].trainer
    return [*request.sets, f"{f'policies.{policy}.' if has_own else ''}trainer.steps={request.steps}"]


def _explain_no_version(
    archive: Archive, policy: str, learner: Learner, counts: RecordCounts, *, has_steps: bool = False
) -> str:
    steps, batch = learner.settings.steps, learner.settings.groups_per_batch
    key = f"policies.{policy}.trainer"  # a value of [trainer] has no effect if the policy has its own
    if learner.version >= steps:
        return (
            f"training begins with version {learner.version}, but trainer.steps of policy {policy} is {steps}, so no "
            f"version is made: give --set {key}.steps=N" + ", or a larger --steps" * has_steps
        )
    enough = (
        f"{counts.left} {inflect(counts.left, 'group was', 'groups were')} left to train on, but a batch needs {batch}"
    )
    words = [f"of the {counts.read} curated records of {archive.root}, {enough}"]
    if evicted := ", ".join(f"{count} {why}" for why, count in sorted(counts.evicted.items())):
        words.append(f"Evicted before a batch was full: {evicted}")
    if unusable := counts.unusable.total():
        words.append(f"Unusable and left out: {unusable} (the first: {counts.first_unusable})")
    older = f", or allow older groups with --set {key}.max_staleness=N" * bool(counts.evicted["expired"])
    return ". ".join([*words, f"Make batches smaller with --set {key}.groups_per_batch=N{older}"])


def _count_possible_versions(archive: Archive, policy: str, learner: Learner) -> int:
    """Return the largest number of versions that the archive's groups can make."""
    records = archive.manifest.topics[archive.topics.curated(policy)].records
    return min(learner.settings.steps - learner.version, records // learner.settings.groups_per_batch)


def _summarize_untrained(counts: RecordCounts, archive: Archive, policy: str) -> Untrained:
    return Untrained(
        read=counts.read,
        evicted=dict(sorted(counts.evicted.items())),
        unusable=dict(sorted(counts.unusable.items())),
        first_unusable=counts.first_unusable,
        replays_lost=dict(sorted((+counts.replays).items())),
        left=counts.left,
        unread=archive.manifest.topics[archive.topics.curated(policy)].records - counts.read,
    )


def _write(folder: Path, start: Start, found: TrainedOffline) -> None:
    """Write the last weights with their files, and the report."""
    write_model(start, folder)
    (folder / REPORT).write_text(encode_json(found.report()) + "\n")


def write_model(start: Start, folder: Path) -> None:
    """Write the learner's present weights into a folder, with the files that belong to them."""
    folder.mkdir(parents=True, exist_ok=True)
    named = start.learner.snapshot_weights()
    if start.is_adapter:
        write_adapter(named, folder / ADAPTER_WEIGHTS, hash_weights(named))
    else:
        write_weights(named, folder, hash_weights(named))
    for name, content in start.files_to_serve().items():
        (folder / name).write_bytes(content)
