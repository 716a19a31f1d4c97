"""Decides what a trainer does next. A state machine without I/O, from the progress of learner and input to an action.

`Trainer` (trainer.py) performs the action on a real learner and log; the protocol's test model uses its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Generic, TypeAlias

from headrace.infra.recipe.settings import TrainerSettings as Settings
from headrace.trainers.batches.evictions import Evictions
from headrace.trainers.batches.window import T, Waiting, Window, WindowEviction, count_next_batch
from headrace.trainers.versions.lost_objects import StoreChecks

RUN_DRY_S = 3.0
"""Seconds that a shadow waits, after the end of the run, for groups from its curator. Later groups are still trained
on if they fill a batch."""


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Progress of learner and input at one moment."""

    version: int
    """The newest version that the learner has trained."""
    is_free: bool
    """Whether the learner can take a step. Read before `version`, because a step may end in between."""
    is_empty: bool
    """Whether all begun versions are on the log."""
    free_since: float
    """Time since which the learner is idle, by the scheduler's clock; valid while it is idle."""
    has_version: bool
    """Whether the oldest begun version can be committed."""
    has_store_check: bool
    """Whether a store check has ended."""
    version_now: int
    """The version from which staleness is counted."""
    arrived_at: float
    """When the last group arrived, by the scheduler's clock."""


@dataclass(frozen=True, slots=True)
class EndStoreCheck:
    """Take the result of the store check; publish the whole weights if it uploaded them."""


@dataclass(frozen=True, slots=True)
class CommitVersion(Generic[T]):
    """Write the records of the oldest begun version, with these evictions."""

    evictions: list[WindowEviction[T]]


@dataclass(frozen=True, slots=True)
class ReportEvictions(Generic[T]):
    """Write a record of evictions without a version."""

    evictions: list[WindowEviction[T]]


@dataclass(frozen=True, slots=True)
class BeginStep(Generic[T]):
    """Let the learner train a version on a batch."""

    version: int
    batch: list[Waiting[T]]
    must_publish: bool
    """Whether this version must be published, because an evaluation or the run's end waits for it."""
    checkpoint: bool


@dataclass(frozen=True, slots=True)
class CheckStore:
    """Check that the store still has all objects for the newest version."""

    read: bool
    """Read the objects too."""
    apply: bool = False
    """Also build the newest version from them."""


@dataclass(frozen=True, slots=True)
class Leave:
    """All begun work is written: the process may end."""


@dataclass(frozen=True, slots=True)
class Rest:
    """There is nothing to do."""


Action: TypeAlias = EndStoreCheck | CommitVersion[T] | ReportEvictions[T] | BeginStep[T] | CheckStore | Leave | Rest


class Scheduler(Generic[T]):
    """Decides in each turn what a trainer does, from the waiting groups.

    Args:
        settings: Settings of the trainer.
        evaluate_every: Versions between evaluations; 0 for none.
        seed: Seed of the window's order.
        ended: Why the run is over; empty while it goes on.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        settings: Settings,
        evaluate_every: int,
        seed: int,
        ended: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._clock = settings, clock
        self._evaluate_every = 0 if settings.is_shadow else evaluate_every
        capacity = (settings.max_staleness + 1) * settings.groups_per_batch
        self.window = Window[T](capacity, settings.order, seed, least=settings.groups_per_batch)
        self._evictions = Evictions[T](clock)
        self._store_checks = StoreChecks(clock)
        self.ended = ended
        """Why the run is over; empty while it goes on."""
        self._leaves = False

    # ---------------------------------------------------------------------------------------------- what has happened

    def add_group(self, group: Waiting[T] | WindowEviction[T]) -> None:
        """Add a group to the window, or take in an eviction."""
        self._evictions.add(self.window.add(group) if isinstance(group, Waiting) else [group])

    def stop_new_steps(self) -> None:
        """Begin no further step."""
        self._leaves = True

    # --------------------------------------------------------------------------------------------------- what is next

    def take_next_action(self, at: TrainingProgress) -> Action[T]:
        """Return the next action; the groups in it have left the window."""
        if at.has_store_check:
            return EndStoreCheck()
        if is_over := self.is_over(at):
            # Before the last version, whose record names all groups that the trainer has read but will never train on.
            self._evictions.end(self.window.pop(len(self.window)))
        if at.has_version:
            return CommitVersion(self._evictions.pop_all())
        if self._leaves:
            return self._take_last_action(at)
        if not is_over:
            self._evictions.add(self.window.expire(at.version_now))
        waits = self.has_batch(at)
        if self._evictions.is_due(at.is_empty, waits):
            return ReportEvictions(self._evictions.pop_all())
        return self._take_step(at) if waits else self._check_store_or_rest(at)

    def _check_store_or_rest(self, at: TrainingProgress) -> Action[T]:
        is_due = at.is_empty and self._store_checks.is_due(max(at.arrived_at, at.free_since))
        return CheckStore(self._store_checks.is_reading, self._store_checks.is_applying) if is_due else Rest()

    def _take_step(self, at: TrainingProgress) -> BeginStep[T]:
        version = at.version + 1
        is_last, every = version == self._settings.steps, self._evaluate_every
        return BeginStep(
            version,
            self._take_batch(at),
            must_publish=is_last or (every > 0 and version % every == 0),
            checkpoint=is_last or version % self._settings.checkpoint_every == 0,
        )

    def _take_last_action(self, at: TrainingProgress) -> Action[T]:
        """Return the remaining action before a trainer stops."""
        if not at.is_empty:
            return Rest()
        return ReportEvictions(self._evictions.pop_all()) if self._evictions else Leave()

    def has_batch(self, at: TrainingProgress) -> bool:
        """Return whether there is a batch, and the learner is free to train it."""
        return at.is_free and self._count_next_batch(at) > 0 and not self.is_over(at)

    def is_over(self, at: TrainingProgress) -> bool:
        """Return whether training is over: the last version is made, or the run has ended."""
        if at.version >= self._settings.steps:
            return True
        return bool(self.ended) and (not self._settings.is_shadow or self._has_run_dry(at))

    def find_first_needed(self, read: Mapping[int, int], under_way: Iterable[Iterable[Waiting[T]]]) -> dict[int, int]:
        """Return, by partition, the first offset that a successor must read to rebuild this window.

        Args:
            read: By partition, the next offset of the curated topic.
            under_way: The batches of begun versions that are not on the log.
        """
        first = dict(read)
        for entry in chain(self.window.list_waiting(), *under_way):
            first[entry.partition] = min(first[entry.partition], entry.offset)
        return first

    def _has_run_dry(self, at: TrainingProgress) -> bool:
        """Return whether a shadow's window has too few groups for a batch, and no group has come for a while."""
        return not self._count_next_batch(at) and self._clock() - at.arrived_at > RUN_DRY_S

    def _count_next_batch(self, at: TrainingProgress) -> int:
        """Return how many groups the next batch takes; 0 while it has to wait."""
        full, waited_s = self._settings.groups_per_batch, self._clock() - at.free_since
        return count_next_batch(
            len(self.window), full, self._settings.minibatches, waited_s, self._settings.batch_limit_s
        )

    def _take_batch(self, at: TrainingProgress) -> list[Waiting[T]]:
        return self.window.pop(self._count_next_batch(at)) or []
