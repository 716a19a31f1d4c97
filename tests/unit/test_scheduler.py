"""What a trainer does next, driven without a learner, a log or a clock."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from headrace.infra.recipe.settings import TrainerSettings as Settings
from headrace.schemas.ids import UseId
from headrace.trainers.batches.evictions import EVICTIONS_WAIT_S
from headrace.trainers.batches.window import Waiting
from headrace.trainers.scheduler import (
    Action,
    BeginStep,
    CheckStore,
    CommitVersion,
    EndStoreCheck,
    Leave,
    ReportEvictions,
    Rest,
    Scheduler,
    TrainingProgress,
)
from headrace.trainers.versions.lost_objects import FIRST_CHECK_S

SETTINGS = Settings(groups_per_batch=2, minibatches=1, max_staleness=1, steps=4, checkpoint_every=2)


def group(number: int, deadline: int = 9, partition: int = 0) -> Waiting[None]:
    return Waiting(UseId("sums", number, 0), 0, deadline, number, partition, number, None)


@dataclass
class Scene:
    """A scheduler, and a learner that takes no time."""

    settings: Settings = SETTINGS
    every: int = 0
    now: float = 0.0
    at: TrainingProgress = field(default_factory=lambda: TrainingProgress(0, True, True, 0.0, False, False, 0, 0.0))

    def __post_init__(self) -> None:
        self.scheduler = Scheduler[None](self.settings, self.every, 1, clock=lambda: self.now)

    def waits(self, *numbers: int) -> None:
        for number in numbers:
            self.scheduler.add_group(group(number))

    def next(self, **changed: object) -> Action[None]:
        self.at = replace(self.at, **changed)  # type: ignore[arg-type]  # by name
        return self.scheduler.take_next_action(self.at)

    def makes(self) -> BeginStep[None]:
        """Begin a step and commit its version."""
        begun = self.next()
        assert isinstance(begun, BeginStep)
        version = begun.version
        assert self.next(version=version, version_now=version, is_empty=False, has_version=True) == CommitVersion([])
        self.at = replace(self.at, has_version=False, is_empty=True)
        return begun


def test_a_step_begins_when_a_batch_waits_and_a_learner_is_free() -> None:
    scene = Scene()
    scene.waits(0)
    assert scene.next() == Rest()
    scene.waits(1)
    assert scene.next(is_free=False, is_empty=False) == Rest()
    begun = scene.next(is_free=True, is_empty=True)
    assert begun == BeginStep(1, [group(0), group(1)], must_publish=False, checkpoint=False)
    assert scene.next() == Rest(), "a batch is named once"


def test_the_last_version_and_each_that_is_evaluated_must_be_published() -> None:
    scene = Scene(every=3)
    scene.waits(0, 1, 2, 3)
    first, second = scene.makes(), scene.makes()
    scene.waits(4, 5, 6, 7)
    third, last = scene.makes(), scene.makes()
    assert [step.must_publish for step in (first, second, third, last)] == [False, False, True, True]
    assert [step.checkpoint for step in (first, second, third, last)] == [False, True, False, True]


def test_what_is_ready_comes_before_what_is_begun() -> None:
    scene = Scene()
    scene.waits(0, 1)
    assert scene.next(has_store_check=True, has_version=True, is_empty=False) == EndStoreCheck()
    assert scene.next(has_store_check=False) == CommitVersion([])
    assert isinstance(scene.next(has_version=False), BeginStep)


def test_evictions_wait_for_the_version_on_its_way_and_leave_with_it() -> None:
    scene = Scene()
    scene.scheduler.add_group(group(0, deadline=0))
    assert scene.next(version=1, version_now=1, is_empty=False) == Rest()
    scene.now = EVICTIONS_WAIT_S + 1
    assert scene.next() == Rest()
    committed = scene.next(has_version=True)
    assert isinstance(committed, CommitVersion)
    assert [one.verdict for one in committed.evictions] == ["expired"]


def test_evictions_without_a_version_on_its_way_are_reported_by_themselves() -> None:
    scene = Scene()
    scene.scheduler.add_group(group(0, deadline=0))
    assert scene.next(version=1, version_now=1) == Rest()
    scene.now = EVICTIONS_WAIT_S + 1
    reported = scene.next()
    assert isinstance(reported, ReportEvictions)
    assert [one.entry for one in reported.evictions] == [group(0, deadline=0)]


def test_without_groups_a_trainer_checks_the_store_first_without_reading() -> None:
    scene = Scene()
    scene.now = FIRST_CHECK_S
    assert scene.next() == CheckStore(read=False)
    assert scene.next() == Rest()
    scene.now = 3 * FIRST_CHECK_S
    assert scene.next(is_empty=False) == Rest(), "a version is on its way"
    assert scene.next(is_empty=True) == CheckStore(read=True)


@pytest.mark.parametrize("ended", ["somebody said so", ""])
def test_when_the_run_is_over_what_waits_leaves_and_nothing_begins(ended: str) -> None:
    scene = Scene()
    scene.waits(0, 1)
    scene.scheduler.ended = ended
    if not ended:
        scene.at = replace(scene.at, version=SETTINGS.steps)
    assert scene.next() == Rest()
    scene.now = EVICTIONS_WAIT_S + 1
    reported = scene.next()
    assert isinstance(reported, ReportEvictions)
    assert [one.verdict for one in reported.evictions] == ["run_end", "run_end"]


def test_the_record_of_the_last_version_names_what_came_with_its_last_turn() -> None:
    scene = Scene()
    scene.waits(0)
    committed = scene.next(version=SETTINGS.steps, is_empty=False, has_version=True)
    assert isinstance(committed, CommitVersion)
    assert [(one.entry, one.verdict) for one in committed.evictions] == [(group(0), "run_end")]


def test_a_trainer_that_is_to_stop_commits_what_it_has_begun_and_takes_no_batch() -> None:
    scene = Scene()
    scene.waits(0, 1)
    scene.scheduler.stop_new_steps()
    assert scene.next(is_empty=False) == Rest()
    assert scene.next(has_version=True) == CommitVersion([])
    assert scene.next(has_version=False, is_empty=True) == Leave()
    assert len(scene.scheduler.window) == 2, "a successor trains it"


def test_a_successor_reads_from_the_first_group_that_is_not_on_the_log() -> None:
    scene = Scene()
    scene.scheduler.add_group(group(7))
    scene.scheduler.add_group(group(3, partition=1))
    assert scene.scheduler.find_first_needed({0: 9, 1: 9, 2: 9}, [[group(5)], [group(8)]]) == {0: 5, 1: 3, 2: 9}
