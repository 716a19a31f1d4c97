"""Ways to let a run go on wrongly from its checkpoints, its retired versions and its newest weights.

They break no number and no hash: only what a component does next, after a restart or a collection.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tampering_hand import Hand
from tamperings import FINISHED, LIVE, Catalogue, a_delta, of_version

from headrace.infra.kafka.clients import Message
from headrace.schemas import codec
from headrace.schemas.records import (
    CheckpointPointer,
    EvalResult,
    ObjectsRetired,
    Outcome,
    TrajectoryGroup,
    WeightsPublished,
)
from headrace.schemas.topics import key_of_retired

tampering = Catalogue()
OF_VERSIONS = tampering.all


# ---------------------------------------------------------------------------------------------------------- checkpoints


def newest_pointer(hand: Hand) -> tuple[Message, CheckpointPointer]:
    return hand.pointer(max(version for version in hand.versions if version % 4 == 0))


def moved(by: int, least: int = 0) -> Any:
    """What makes a pointer's positions with other offsets."""
    return lambda pointer: tuple(replace(one, offset=max(one.offset + by, least)) for one in pointer.positions)


tampering.altered(
    "p1_positions_of_the_newest_checkpoint_far_forward",
    "must read .*curated.solver.* from offset .*, but (the group at offset|the trainer has read it only to)",
    newest_pointer,
    positions=moved(10_000),
)
tampering.altered(
    "p2_positions_of_a_checkpoint_a_little_forward",
    "the checkpoint of version 4 of solver.* but the group at offset .* was concluded later",
    lambda hand: hand.pointer(4),
    positions=moved(20),
)
tampering.altered(
    "p3_positions_past_groups_that_wait",
    "the checkpoint of version .* but the group at offset .* (is neither trained nor evicted|was concluded later)",
    newest_pointer,
    LIVE,
    positions=moved(8),
)
tampering.altered(
    "p4_batches_offset_of_the_newest_checkpoint_far_forward",
    "must read `batches` from offset 10000, but its own record is at offset",
    newest_pointer,
    batches_offset=10_000,
)


@tampering("must read `batches` from offset .*, but the record at offset .* names the group .*, which would be trained")
def p5_checkpoint_from_the_beginning_of_curated_groups_only(hand: Hand) -> None:
    message, pointer = newest_pointer(hand)
    own = hand.batch(pointer.version)[0].offset
    hand.put(message, replace(pointer, positions=(), batches_offset=own))


# ----------------------------------------------------------------------------------------------------- retired versions


def retire(hand: Hand, what: str, *versions: int) -> None:
    """Append that the objects of a range of versions may be deleted."""
    record = ObjectsRetired(hand.run_id, hand.policy, what=what, versions=np.array(versions, np.int32))
    hand.append(hand.all(hand.state)[-1], record, key=key_of_retired(hand.policy, what))


tampering.add(
    "g1_first_checkpoint_retired",
    "the checkpoints of version 0 of solver may be deleted, but it is the first version",
    lambda hand: retire(hand, "checkpoints", 0, 0),
)
tampering.add(
    "g2_all_checkpoints_retired",
    "the checkpoints of version .* of solver may be deleted, but it is the newest version",
    lambda hand: retire(hand, "checkpoints", 1, 10_000),
)
tampering.add(
    "g3_first_weights_retired",
    "the weights of version 0 of solver may be deleted, but it is the first version",
    lambda hand: retire(hand, "weights", 0, 0),
)


@tampering("the weights of version .* of solver may be deleted, but it is the newest version", FINISHED)
def g4_newest_weights_retired_and_gone(hand: Hand) -> None:
    newest = max(event.version for _, event in hand.decoded(hand.weights, WeightsPublished))
    retire(hand, "weights", newest, newest)
    hand.lose(hand.event(newest)[1].weights)


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


@tampering("it answers for version .*, but version 3 generated tokens of it")
def v50_answer_of_another_version(hand: Hand) -> None:
    message = hand.all(hand.eval_groups)[0]
    group = of_version(3)(codec.decode(message.value, TrajectoryGroup))
    hand.put(message, group, headers=hand.renumber(message, min_version=3, max_version=3))


tampering.altered(
    "v51_asked_problems_of_a_result_altered",
    "has a result that differs from its answers .*asked",
    lambda hand: hand.decoded(hand.evals, EvalResult)[0],
    asked=99,
)
