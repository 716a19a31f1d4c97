"""What a trainer does next. A state machine without I/O: from how far learner and input are to an action.

`Trainer` (trainer.py) takes the action, on a real learner and log. A model of the protocol may take it on others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeAlias

from headrace.infra.recipe.settings import TrainerSettings as Settings
from headrace.trainers.batches.evictions import Evictions
from headrace.trainers.batches.trials import Trials
from headrace.trainers.batches.window import T, Waiting, Window, WindowEviction, count_next_batch
from headrace.trainers.versions.lost_objects import StoreChecks

RUN_DRY_S = 3.0
"""When the run is over a shadow waits for so long for what its curator still writes; what comes later is trained too,
where it makes a batch."""


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """How far learner and input are, at one moment."""

    version: int
    """The newest that the learner has made."""
    is_free: bool
    """Whether the learner may be given a step. Asked before `version`, as a step may end in between."""
    is_empty: bool
    """Whether all versions that were begun are on the log."""
    free_since: float
    """Since when the learner rests, by the scheduler's clock; while it does."""
    has_version: bool
    """Whether the oldest version that was begun can be committed."""
    has_store_check: bool
    """Whether a check of the store has ended."""
    version_now: int
    """The version by which groups are old."""
    arrived_at: float
    """When a group arrived last, by the scheduler's clock."""


@dataclass(frozen=True, slots=True)
class EndStoreCheck:
    """Take the result of the check of the store; publish the whole weights that it uploaded, if it did."""


@dataclass(frozen=True, slots=True)
class CommitVersion(Generic[T]):
    """Write the records of the oldest version that was begun, with these evictions."""

    evictions: list[WindowEviction[T]]


@dataclass(frozen=True, slots=True)
class ReportEvictions(Generic[T]):
    """Write a record of evictions that makes no version."""

    evictions: list[WindowEviction[T]]


@dataclass(frozen=True, slots=True)
class PoisonBatch(Generic[T]):
    """Write a dead letter for each group of a batch that ends the process again and again."""

    version: int
    batch: list[Waiting[T]]


@dataclass(frozen=True, slots=True)
class NoteStep:
    """Write that the step to a version is about to begin; it does when this is committed."""

    version: int
    times: int
    """How often the step to it was noted, this time included."""
    groups: int
    """Number of groups of the batch that it will get."""
    suspects: int
    """See `Trials`."""


@dataclass(frozen=True, slots=True)
class BeginStep(Generic[T]):
    """Let the learner make a version of a batch."""

    version: int
    batch: list[Waiting[T]]
    must_publish: bool
    """Whether somebody waits for just this version."""
    checkpoint: bool


@dataclass(frozen=True, slots=True)
class CheckStore:
    """See whether the store still has what leads to the newest version."""

    read: bool
    """Read the objects too."""
    apply: bool = False
    """Make the newest version of them."""


@dataclass(frozen=True, slots=True)
class Leave:
    """All is written that was begun: the process may end."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing is to be done."""


Action: TypeAlias = (
    EndStoreCheck
    | CommitVersion[T]
    | ReportEvictions[T]
    | PoisonBatch[T]
    | NoteStep
    | BeginStep[T]
    | CheckStore
    | Leave
    | Rest
)


class Scheduler(Generic[T]):
    """Decides turn by turn what a trainer does, over the groups that wait.

    Args:
        settings: Of the trainer.
        evaluate_every: Versions of which each is evaluated; 0 for none.
        seed: Of the window's order.
        trials: How it comes past a batch that ended the process before.
        ended: Why the run is over; empty while it is not.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        settings: Settings,
        evaluate_every: int,
        seed: int,
        trials: Trials,
        ended: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._trials, self._clock = settings, trials, clock
        self._evaluate_every = 0 if settings.is_shadow else evaluate_every
        capacity = (settings.max_staleness + 1) * settings.groups_per_batch
        self.window = Window[T](capacity, settings.order, seed, least=settings.groups_per_batch)
        self._evictions = Evictions[T](clock)
        self._store_checks = StoreChecks(clock)
        self.ended = ended
        """Why the run is over; empty while it is not."""
        self._leaves = False

    # ---------------------------------------------------------------------------------------------- what has happened

    def add_group(self, group: Waiting[T] | WindowEviction[T]) -> None:
        """Take a group into the window, or one that never gets there."""
        self._evictions.add(self.window.add(group) if isinstance(group, Waiting) else [group])

    def note_version(self, version: int, groups: int) -> None:
        """Learn that a version of so many groups is being committed."""
        self._trials.note_version(version, groups)

    def finish(self) -> None:
        """Begin nothing more."""
        self._leaves = True

    # --------------------------------------------------------------------------------------------------- what is next

    def take_next_action(self, at: TrainingProgress) -> Action[T]:
        """Return what to do now; what it holds has left the window and is not named again."""
        if at.has_store_check:
            return EndStoreCheck()
        if is_over := self.is_over(at):
            # Before the last version: its record names all that the trainer has read and will never train on.
            self._evictions.end(self.window.pop(len(self.window)))
        if at.has_version:
            return CommitVersion(self._evictions.pop_all())
        if self._leaves:
            return self._leave(at)
        if not is_over:
            self._evictions.add(self.window.expire(at.version_now))
        waits = self.has_batch(at)
        if self._evictions.is_due(at.is_empty, waits):
            return ReportEvictions(self._evictions.pop_all())
        return self._begin(at) if waits else self._check_store(at)

    def _check_store(self, at: TrainingProgress) -> Action[T]:
        is_due = at.is_empty and self._store_checks.is_due(max(at.arrived_at, at.free_since))
        return CheckStore(self._store_checks.is_reading, self._store_checks.is_applying) if is_due else Rest()

    def _begin(self, at: TrainingProgress) -> Action[T]:
        """Begin a step; or do what is to be committed before: that it begins, or that its groups are poison."""
        version = at.version + 1
        if self._trials.is_poison(version):
            batch = self._take_batch(at)
            self._trials.start_over()
            return PoisonBatch(version, batch)
        if times := self._trials.note(version):
            return NoteStep(version, times, self._trials.groups(version), self._trials.suspects)
        is_last, every = version == self._settings.steps, self._evaluate_every
        return BeginStep(
            version,
            self._take_batch(at),
            must_publish=is_last or (every > 0 and version % every == 0),
            checkpoint=is_last or version % self._settings.checkpoint_every == 0,
        )

    def withdraw_step(self) -> NoteStep | None:
        """Return the note of a step as it was before it was begun; None if this life noted none."""
        trials = self._trials
        return None if trials.noted < 0 else NoteStep(trials.noted, trials.died, 0, trials.suspects)

    def _leave(self, at: TrainingProgress) -> Action[T]:
        """Return what is left to be written before a trainer stops."""
        if not at.is_empty:
            return Rest()
        return ReportEvictions(self._evictions.pop_all()) if self._evictions else Leave()

    def has_batch(self, at: TrainingProgress) -> bool:
        """Return whether there is a batch, and a learner that may begin to train it."""
        may_begin = at.is_empty or (at.is_free and not self._trials.has_to_wait(at.version + 1))
        return may_begin and self._count_next_batch(at) > 0 and not self.is_over(at)

    def is_over(self, at: TrainingProgress) -> bool:
        """Return whether nothing more is trained: the last version is made, or the run has ended."""
        if at.version >= self._settings.steps:
            return True
        return bool(self.ended) and (not self._settings.is_shadow or self._has_run_dry(at))

    def find_first_needed(self, read: Mapping[int, int], under_way: Iterable[Iterable[Waiting[T]]]) -> dict[int, int]:
        """Return, by partition, the first offset that a successor must read to have this window again.

        Args:
            read: By partition, the next offset of the curated topic.
            under_way: The batches of versions that are begun and not on the log.
        """
        first = dict(read)
        for entry in chain(self.window.list_waiting(), *under_way):
            first[entry.partition] = min(first[entry.partition], entry.offset)
        return first

    def _has_run_dry(self, at: TrainingProgress) -> bool:
        """Return whether no batch can be cut of a shadow's window, and nothing has come for a while."""
        return not self._count_next_batch(at) and self._clock() - at.arrived_at > RUN_DRY_S

    def _count_next_batch(self, at: TrainingProgress) -> int:
        """Return how many groups the next batch takes; 0 while it is to wait."""
        full, waited_s = self._trials.groups(at.version + 1), self._clock() - at.free_since
        return count_next_batch(
            len(self.window), full, self._settings.minibatches, waited_s, self._settings.batch_limit_s
        )

    def _take_batch(self, at: TrainingProgress) -> list[Waiting[T]]:
        return self.window.pop(self._count_next_batch(at)) or []
