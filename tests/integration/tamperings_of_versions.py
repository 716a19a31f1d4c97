"""Ways to let a run go on wrongly from its checkpoints, its retired versions and its newest weights.

They break no number and no hash: only what a component does next, after a restart or a collection.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tampering_hand import Hand
from tamperings import LIVE, Catalogue, a_delta

from headrace.schemas import codec
from headrace.schemas.records import (
    EvalResult,
    Outcome,
    TrajectoryGroup,
)

tampering = Catalogue()
OF_VERSIONS = tampering.all


# ---------------------------------------------------------------------------------------------------------- checkpoints


def moved(by: int, least: int = 0) -> Any:
    """What makes a pointer's positions with other offsets."""
    return lambda pointer: tuple(replace(one, offset=max(one.offset + by, least)) for one in pointer.positions)


# ----------------------------------------------------------------------------------------------------- retired versions


# ------------------------------------------------------------------------------------------------ versions that are not


def newest_sampled(hand: Hand) -> int:
    """The newest version that a curated group was sampled with."""
    return max(int(dict(message.headers)["max_version"]) for message in hand.all(hand.curated))


tampering.add(
    "w40_event_of_the_newest_sampled_version_removed",
    "version .* of solver is not published, but .*(curated|outcomes).* names it",
    lambda hand: hand.remove(hand.event(newest_sampled(hand))[0]),
)
tampering.add(
    "w41_newest_events_gone",
    "version .* of solver is not published, but .* names it|has a checkpoint, but is not published",
    lambda hand: hand.cut_tail(hand.weights, 3),
)


@tampering("version 999 of solver is not published, but .*curated.solver.* names it")
def j40_head_of_a_group_that_never_was(hand: Hand) -> None:
    number = hand.trained[0].number
    hand.change_group(number, lambda group: replace(group, head_version=999), head_version=999)


@tampering("version 999 of solver is not published, but .*outcomes.solver.* names it")
def o40_head_of_a_dropped_group_that_never_was(hand: Hand) -> None:
    [message] = hand.about(hand.trajectories, hand.dropped)
    group = replace(codec.decode(message.value, TrajectoryGroup), head_version=999)
    hand.put(message, group, headers=hand.renumber(message, head_version=999))
    message, outcome = hand.outcome(hand.dropped)
    made: Outcome = replace(outcome, head_version=999)
    hand.put(message, made, headers=hand.renumber(message, head_version=999))


tampering.altered(
    "w42_version_before_the_last_marked_as_final",
    "is marked as final, but no recipe of the run ends with it or before it",
    lambda hand: hand.event(hand.middle),
    final=True,
)


# ------------------------------------------------------------------------------------------- what is done a second time


tampering.add(
    "k40_curators_commit_back_before_what_they_concluded",
    "has committed offset .*, but the group delivered at offset .* has an outcome: it would be curated again",
    lambda hand: hand.commit(hand.topics.curate_group("solver"), lambda offset: offset - 2),
    LIVE,
)


@tampering("but the group delivered at offset .* has an outcome: it would be curated again")
def k41_delivery_behind_the_commit(hand: Hand) -> None:
    [message] = hand.about(hand.trajectories, hand.dropped)
    hand.remove(message)
    hand.append(message)


tampering.altered(
    "b40_positions_of_a_batch_gone", "gives no position on .*curated.solver.*, but an earlier", Hand.batch, positions=()
)
tampering.altered(
    "w43_event_of_an_unknown_kind", "is of kind 'sparse', which this release does not know", a_delta, kind="sparse"
)


@tampering("its attempt is 3 by its headers, but 0 by its value")
def j41_header_of_a_delivery_altered(hand: Hand) -> None:
    message = hand.delivery()
    hand.put(message, headers=hand.renumber(message, attempt=3))


tampering.altered(
    "v51_asked_problems_of_a_result_altered",
    "has a result that differs from its answers .*asked",
    lambda hand: hand.decoded(hand.evals, EvalResult)[0],
    asked=99,
)
