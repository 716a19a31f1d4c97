"""Old bugs, put back one at a time: the model finds each, and shows the steps that lead to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from protocol.broker import STAGE
from protocol.clients import Consumer
from protocol.commands import Changed, Race, SteppedWriter
from protocol.explore import Explorer
from protocol.faults import (
    double_a_curated_record,
    fall_behind,
    forge_versions,
    forget_a_group,
    freeze_the_store,
    lose_a_tail,
    lose_an_object,
    pause_the_curators,
)
from protocol.run import recipe
from protocol.seams import in_place
from protocol.world import Fault, World

from headrace.consumers.curate.published_versions import PublishedVersions
from headrace.infra.kafka import clients
from headrace.infra.run import revisions
from headrace.ops import swap
from headrace.ops.audit import numbers
from headrace.ops.audit.weights_chain import WeightsChain
from headrace.producers.feed import feed_state
from headrace.producers.feed.overdue import OverdueNumbers
from headrace.producers.rollout.admission import Admission
from headrace.trainers.batches.evictions import Evictions
from headrace.trainers.scheduler import Scheduler
from headrace.trainers.trainer import Trainer
from headrace.trainers.versions.lost_objects import StoreChecks


@dataclass(frozen=True)
class Finding:
    """An old bug.

    Args:
        name: What went wrong.
        put_back: Makes the production code what it was.
        fault: By which it shows; None where it needs none.
        broken: Part of the sentence with which the model says which promise is broken.
        steps: Versions of the run.
        max_staleness: Of its trainer.
        of: Who is there.
    """

    name: str
    put_back: Callable[[pytest.MonkeyPatch], object]
    fault: Fault | None
    broken: str
    steps: int = 2
    max_staleness: int = 1
    of: type[World] = World


def never_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoreChecks, "is_due", lambda *_: False)


def reissue_what_workers_passed(patch: pytest.MonkeyPatch) -> None:
    find_due = OverdueNumbers.find_due

    def as_before(self: OverdueNumbers, passed: Any, ends: Any, curated: Any, now_s: float) -> Any:
        return find_due(self, passed, ends, ends, now_s)

    patch.setattr(OverdueNumbers, "find_due", as_before)
    patch.setattr(feed_state, "MOST_ATTEMPTS", math.inf)


def begin_again_at_zero(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        clients, "WatchedConsumer", lambda config, **more: Consumer({**config, "auto.offset.reset": "earliest"}, **more)
    )


def believe_any_version(patch: pytest.MonkeyPatch) -> None:
    def can_move_clock(_self: PublishedVersions, _message: object, _group: object) -> bool:
        return True

    patch.setattr(PublishedVersions, "can_move_clock", can_move_clock)
    patch.setattr(WeightsChain, "note_sampled", lambda *_: None)  # the audit would say at once that there is none


def report_expired_at_once(patch: pytest.MonkeyPatch) -> None:
    is_due = Evictions.is_due
    patch.setattr(Evictions, "is_due", lambda self, _is_idle, waits: is_due(self, True, waits))


def believe_what_adds_up(patch: pytest.MonkeyPatch) -> None:
    """What is not concluded is in flight, wherever it is, and what is there twice is there."""

    seen = [one for one in numbers.CHECKS if not {"curated_again", "overdue"} & {*one.where.split()}]
    patch.setattr(numbers, "CHECKS", seen)
    patch.setattr(numbers, "_COUNT", numbers._COUNT.replace(" + curated_again", ""))
    patch.setattr(numbers.PolicyNumbers, "count_waiting", lambda _: 0)


def take_in_what_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Trainer, "_has_group", lambda *_: False)


def name_after_the_last_version(patch: pytest.MonkeyPatch) -> None:
    is_over = Scheduler.is_over
    patch.setattr(Scheduler, "is_over", lambda self, at: not at.has_version and is_over(self, at))


def write_by_oneself(patch: pytest.MonkeyPatch) -> None:
    def of_each(self: SteppedWriter, cluster: object, transactional_id: str, topics: object) -> None:
        begin(self, cluster, f"{transactional_id}.{STAGE.actor}", topics)

    begin = SteppedWriter.__init__
    patch.setattr(SteppedWriter, "__init__", of_each)


def read_before_the_fence(patch: pytest.MonkeyPatch) -> None:
    write_later_revision = revisions.write_later_revision

    def as_before(address: Any, settle: Callable[[], Any]) -> Any:
        revision = settle()
        return write_later_revision(address, lambda: revision)

    patch.setattr(revisions, "write_later_revision", as_before)
    patch.setattr(swap, "write_later_revision", as_before)


def believe_what_was_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "is_written", lambda *_: False)


FINDINGS = (
    Finding("a lost delta stops the run", never_look, lose_an_object, "not at its end", 3, 0),
    Finding("numbers are issued again", reissue_what_workers_passed, pause_the_curators, "wait for their curator"),
    Finding("a lost tail is trained again", begin_again_at_zero, lose_a_tail, "was trained 2 times", 5, 3),
    Finding("a group of any version moves the clock", believe_any_version, forge_versions, "were issued", 3),
    Finding("a frozen store burns rollouts", report_expired_at_once, freeze_the_store, "were issued", 4),
    Finding("the audit sees no loss", believe_what_adds_up, forget_a_group, "the audit does not say", 11),
    Finding("the audit sees no double", believe_what_adds_up, double_a_curated_record, "the audit does not say"),
    Finding("each command writes by itself", write_by_oneself, None, "revision 1 has 2 contents", of=Race),
    Finding("a command reads before it fences", read_before_the_fence, None, "revision 1 has 2 contents", of=Race),
    Finding("a slow worker kills its task", believe_what_was_read, fall_behind, "dead of unknown_rev", of=Changed),
    Finding("the last turn looks lost", name_after_the_last_version, None, "neither trained nor evicted", 1),
    Finding("a record written twice kills its trainer", take_in_what_waits, double_a_curated_record, "KeyError"),
)


@pytest.mark.model
@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding.name.replace(" ", "-"))
def test_the_model_finds_what_went_wrong(finding: Finding) -> None:
    with in_place() as patch:
        finding.put_back(patch)
        faults = (finding.fault,) if finding.fault else ()
        world = finding.of(recipe(finding.steps, finding.max_staleness), faults)
        found = Explorer(world).sketch() if world.has_end() else Explorer(world).explore(faults=0)
    assert found is not None, "the model does not see it"
    print(found)  # noqa: T201 - the steps that lead there
    assert finding.broken in found.what, found
