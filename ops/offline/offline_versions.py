"""Versions made from an archive: from the run's own batches, or from new batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from headrace.infra.archive.reading import Archive
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Message
from headrace.infra.kafka.decoding import MessageRefused, decode_own
from headrace.infra.recipe.settings import Recipe
from headrace.ops.offline.archived_groups import (
    ArchivedFirstUses,
    Arrived,
    iterate_arrivals,
    iterate_batches,
    read_history,
)
from headrace.ops.offline.archived_start import Start
from headrace.schemas.ids import UseId
from headrace.schemas.records import BatchTrained, CuratedGroup
from headrace.trainers.batches.batch import TrainingSequence
from headrace.trainers.batches.first_use_cache import FirstUseCache
from headrace.trainers.batches.groups import DecodedGroup, PreparedGroup, build_batch_sequences, decode_group
from headrace.trainers.batches.window import Waiting, Window, WindowEviction, count_next_batch
from headrace.trainers.checked_groups import prepare_checked_group
from headrace.trainers.intake import UNUSABLE
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.step_metrics import StepMetrics, group_metrics
from headrace.trainers.versions.remake import hash_learner, train_again

NOT_HERE = ("logprob_gap", "staleness_")
"""Beginnings of the metrics that are wrong here. They compare with an engine of the same weights, which does not exist
here, or measure ages by the number of the version."""


@dataclass(frozen=True, slots=True)
class RemadeVersion:
    """A version that was made from an archive."""

    version: int
    groups: list[DecodedGroup]
    base_hash: str
    weights_hash: str
    metrics: StepMetrics
    clock: int | None = None
    """Newest head_version read so far."""
    expected: str | None = None
    """Hash of the weights that the run had made of the same batch."""
    is_comparable: bool = True
    """Whether the run made this version, and all before it, under this machine's numerics fingerprint."""

    @property
    def is_equal(self) -> bool | None:
        """Whether it has the hash that it had in the run; None if that is not known, or cannot be compared here."""
        return self.expected == self.weights_hash if self.expected is not None and self.is_comparable else None

    @property
    def uses(self) -> list[UseId]:
        """Uses of its groups, in the order in which they were trained."""
        return [UseId.of(one.curated) for one in self.groups]

    def describe(self) -> OfflineVersion:
        """Return the report of it, without its groups."""
        return OfflineVersion(
            version=self.version,
            clock=self.clock,
            groups=len(self.groups),
            trajectories=sum(len(one.curated.kept) for one in self.groups),
            base_hash=self.base_hash,
            weights_hash=self.weights_hash,
            expected=self.expected,
            equal=self.is_equal,
            metrics=self.metrics,
        )


@dataclass(frozen=True, slots=True)
class OfflineVersion:
    """The report of a version that was made from an archive."""

    version: int
    clock: int | None
    groups: int
    trajectories: int
    base_hash: str
    weights_hash: str
    expected: str | None
    equal: bool | None
    """Whether it has the hash that it had in the run; None if not known, or not comparable here."""
    metrics: StepMetrics

    def to_json(self) -> Mapping[str, object]:
        """Return the fields, without a clock or an expected hash that is None."""
        report = {one.name: getattr(self, one.name) for one in fields(self)}
        unknown = [*["clock"] * (self.clock is None), *["expected", "equal"] * (self.expected is None)]
        return {name: value for name, value in report.items() if name not in unknown}


@dataclass(slots=True)
class RecordCounts:
    """Counts of the archived records, by what happened to them."""

    read: int = 0
    evicted: Counter[str] = field(default_factory=Counter)
    """Number of groups that left the window untrained, by verdict."""
    unusable: Counter[str] = field(default_factory=Counter)
    """Number of records that would be dead letters in a run, by reason."""
    first_unusable: str = ""
    """Why the first of these is unusable; empty if there is none."""
    replays: Counter[str] = field(default_factory=Counter)
    """Number of replays among the evicted and unusable, by reason."""
    left: int = 0
    """Number of groups that waited when the archive was read, or the last version made."""

    def count_unusable(self, message: Message, reason: str, detail: str) -> None:
        """Count a record that cannot be trained on."""
        where = f"{message.topic}[{message.partition}] offset {message.offset}"
        self.first_unusable = self.first_unusable or f"{where}: {detail}"
        self.unusable[reason] += 1


# --------------------------------------------------------------------------------------------------- the run's batches


def batches_of_the_run(archive: Archive, policy: str, last: int | None) -> list[BatchTrained]:
    """Return the run's batches after the oldest checkpoint, up to a version. Raises UsageError if there are none."""
    archive.partitions(archive.topics.batches(policy))
    history = read_history(archive, policy)
    first = min(history.checkpoints, default=0)
    found = [one for one in history.batches if first < one.version and (last is None or one.version <= last)]
    if not found:
        raise UsageError(
            f"the archive {archive.root} has nothing to train policy {policy} on: no batch of a version above "
            + (f"{first}" if last is None else f"{first} and at most {last} (--steps)")
            + ": leave out --batches to train on new batches"
        )
    return found


def retrain_versions(
    archive: Archive, policy: str, learner: Learner, recipes: Sequence[Recipe], batches: Sequence[BatchTrained]
) -> Iterator[RemadeVersion]:
    """Make the versions of these batches. Raises as `iterate_batches` and `Learner.step`."""
    base, here, is_comparable = hash_learner(learner), learner.fingerprint(), True
    for one in train_again(iterate_batches(archive, policy, batches), policy, learner, recipes):
        metrics = {**one.metrics, **group_metrics(one.groups, learner.version - 1)}
        found, expected = hash_learner(learner), one.batch.weights_hash
        is_comparable = is_comparable and one.batch.fingerprint == here
        yield RemadeVersion(
            learner.version, one.groups, base, found, metrics, expected=expected, is_comparable=is_comparable
        )
        base = found


# ------------------------------------------------------------------------------------------------------- batches anew


def train_versions(archive: Archive, policy: str, start: Start, counts: RecordCounts) -> Iterator[RemadeVersion]:
    """Make a version whenever the window holds a batch, until the archive is read or the last version made.

    Raises as `Archive.messages` and `Learner.step`.
    """
    topic, learner = archive.topics.curated(policy), start.learner
    intake, records = _OfflineIntake(archive, topic, start, counts), iterate_arrivals(archive, topic)
    base = hash_learner(learner)
    while learner.version < learner.settings.steps and (record := next(records, None)) is not None:
        intake.add_to_window(record)
        batch = intake.batch()
        if batch:
            step = learner.step(_shift_versions(batch, learner, intake.clock), learner.version + 1)
            groups, found = [one.decoded for one in batch], hash_learner(learner)
            metrics = {**_select_true_metrics(step), **group_metrics(groups, intake.clock)}
            yield RemadeVersion(learner.version, groups, base, found, metrics, clock=intake.clock)
            base = found
    counts.left = intake.waiting


def _shift_versions(batch: Sequence[PreparedGroup], learner: Learner, clock: int) -> list[TrainingSequence]:
    """Return a batch's sequences with shifted versions, so that the learner sees the ages by the clock of the log.

    The learner counts ages from its own version. No version becomes less than 0.
    """
    shift, most = learner.version - clock, learner.version
    return [
        replace(one, versions=np.where(one.mask, np.clip(one.versions + shift, 0, most), -1).astype(np.int32))
        for one in build_batch_sequences(batch, learner.settings)
    ]


def _select_true_metrics(metrics: StepMetrics) -> StepMetrics:
    return {name: value for name, value in metrics.items() if not name.startswith(NOT_HERE)}


class _OfflineIntake:
    """Puts archived records into a trainer's window."""

    def __init__(self, archive: Archive, topic: str, start: Start, counts: RecordCounts) -> None:
        self.clock = 0
        self._limits, self._settings = start.learner.limits, start.learner.settings
        self._archive, self._counts, self._tokenizer_hash = archive, counts, start.tokenizer_hash
        capacity = (self._settings.max_staleness + 1) * self._settings.groups_per_batch
        least = self._settings.groups_per_batch
        self._window = Window[PreparedGroup](capacity, self._settings.order, start.learner.seed, least=least)
        self._first_uses = FirstUseCache(ArchivedFirstUses(archive, topic))

    @property
    def waiting(self) -> int:
        """How many groups the window holds."""
        return len(self._window)

    def add_to_window(self, arrived: Arrived) -> None:
        """Put a record into the window, or count why that is impossible."""
        message, counts = arrived.message, self._counts
        self.clock = max(self.clock, arrived.clock)
        counts.read += 1
        try:
            curated = decode_own(message.value, CuratedGroup, self._archive.manifest.run_id)
        except MessageRefused as refused:
            counts.count_unusable(message, refused.reason, str(refused))
            return
        try:
            found = self._decode_group(message, curated)
        except UNUSABLE as error:
            counts.count_unusable(message, "unusable", str(error))
            counts.replays["unusable"] += curated.use > 0
            return
        if found is None:
            counts.evicted["missing"] += 1
            counts.replays["missing"] += 1
            return
        entry = Waiting(
            use_id=UseId.of(curated),
            min_version=curated.min_version,
            deadline_version=self._find_deadline(curated),
            arrival=counts.read,
            partition=message.partition,
            offset=message.offset,
            payload=found,
            size_bytes=found.size_bytes,
        )
        self._count_evictions(self._window.add(entry))

    def _decode_group(self, message: Message, curated: CuratedGroup) -> PreparedGroup | None:
        """Return the decoded group; None for a replay whose first use is not archived. Raises if it is unusable."""
        found = self._first_uses.complete(message, curated)
        if found is None:
            return None
        group = decode_group(self._archive, found)
        return prepare_checked_group(group, self._limits, self._settings, lambda: self._tokenizer_hash, self.clock)

    def _find_deadline(self, curated: CuratedGroup) -> int:
        """Return the last clock at which a group may be trained: by the settings, or for a replay by its chain."""
        return curated.deadline_version if curated.use else curated.min_version + self._settings.max_staleness

    def batch(self) -> list[PreparedGroup]:
        """Return the next batch; an empty list if the window must fill first."""
        self._count_evictions(self._window.expire(self.clock))
        size = count_next_batch(self.waiting, self._settings.groups_per_batch, self._settings.minibatches, 0.0, 0.0)
        return [entry.payload for entry in self._window.pop(size) or ()]

    def _count_evictions(self, evictions: Sequence[WindowEviction[PreparedGroup]]) -> None:
        self._counts.evicted.update(eviction.verdict for eviction in evictions)
        self._counts.replays.update(eviction.verdict for eviction in evictions if eviction.entry.is_replay)
