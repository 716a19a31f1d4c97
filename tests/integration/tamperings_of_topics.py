"""Ways to break a promise in one topic of a run's log, by what a tamperer does to it: the rest of the catalogue.

Operations: remove, repeat, reorder, alter, forge, cut head or tail, exchange. Whoever wrote these had not seen the
audit's code. Not here, because readers allow it by design: a trajectory, task or dead letter twice (taken once), tasks
below the workers' commit removed (the feeder deletes them), outcomes, answers or results in another order, an equal
revision or checkpoint pointer twice, older snapshots gone (compaction), and whatever is done to `workers`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tampering_hand import Hand
from tamperings import FINISHED, LIVE, STOPPED, Catalogue, a_delta, better

from headrace.infra.kafka.clients import Message
from headrace.schemas import codec
from headrace.schemas.headers import task_key
from headrace.schemas.records import (
    BatchTrained,
    CuratedGroup,
    DeadLetter,
    EvalResult,
    Task,
    TrajectoryGroup,
    WeightsPublished,
)

tampering = Catalogue()
OF_TOPICS = tampering.all

RESTING = (STOPPED, FINISHED)
"""For what an audit cannot tell from a record written while it reads."""


def last(hand: Hand) -> int:
    """The newest version."""
    return max(hand.versions)


# --------------------------------------------------------------------------------------------------------------- recipe


tampering.altered(
    "r20_first_revision_renumbered", "the recipe topic begins with revision 7, not 0", Hand.revision, revision=7
)


@tampering("recipe revision 7 follows 0, so the revisions between are missing")
def r21_revision_forged_after_a_gap(hand: Hand) -> None:
    message, revision = hand.revision()
    hand.append(message, replace(revision, revision=7), key=b"7")


@tampering("the run is marked as finished, but solver is at version", LIVE)
def r22_end_forged(hand: Hand) -> None:
    message, revision = hand.revision()
    hand.append(message, replace(revision, ended="steps"))


# ---------------------------------------------------------------------------------------------------------------- tasks


@tampering("tasks.sums.* cannot be used, but has no dead letter", LIVE)
def t22_task_that_is_none(hand: Hand) -> None:
    hand.put(hand.about(hand.tasks, hand.dropped)[0], value=bytes(40))


@tampering("tasks.sums.* its number is .* by its headers, but .* by its value", LIVE)
def t23_values_of_two_tasks_exchanged(hand: Hand) -> None:
    one = hand.about(hand.tasks, hand.dropped)[0]
    hand.exchange(one, hand.beside(one), values=True)


@tampering("has a record on the tasks topic, but the feeder's snapshot does not count it as issued")
def t24_task_forged_with_a_number_to_come(hand: Hand) -> None:
    like, number = hand.all(hand.tasks)[-1], hand.end + 5
    task = replace(codec.decode(like.value, Task), number=number)
    hand.append(like, task, key=task_key("sums", number), headers=hand.renumber(like, number=number))


tampering.add(
    "t25_newest_tasks_gone",
    "has committed offset .* of .*tasks.sums.*, but the offsets|is in flight, but its task does not wait for a worker",
    lambda hand: hand.cut_tail(hand.tasks, 3),
)
tampering.add("t26_tasks_deleted", "topic .*tasks.sums does not exist", lambda hand: hand.delete(hand.tasks))


# --------------------------------------------------------------------------------------------------------- trajectories


tampering.add(
    "j20_trajectory_of_a_dropped_group_removed",
    "was curated, but no worker produced it",
    lambda hand: hand.remove(*hand.about(hand.trajectories, hand.dropped)),
)


@tampering("has an outcome of a group that no worker delivered")
def j21_trajectory_of_a_dropped_group_altered(hand: Hand) -> None:
    [message] = hand.about(hand.trajectories, hand.dropped)
    hand.put(message, better(codec.decode(message.value, TrajectoryGroup)))


tampering.add(
    "j22_newest_trajectories_gone",
    "has committed offset .* of .*trajectories.solver|was curated, but no worker produced it",
    lambda hand: hand.cut_tail(hand.trajectories, 3),
)
tampering.add(
    "j23_trajectories_deleted",
    "was curated, but no worker produced it|match any group that workers produced",
    lambda hand: hand.delete(hand.trajectories),
)


# -------------------------------------------------------------------------------------------------------------- curated


def removed(hand: Hand) -> None:
    hand.remove(hand.curated_record()[0])


tampering.add("c20_curated_record_removed", "was kept, but has no curated record", removed)
tampering.add(
    "c21_newest_curated_records_gone",
    "was kept, but has no curated record",
    lambda hand: hand.cut_tail(hand.curated, 3),
)
tampering.add(
    "c22_oldest_curated_records_gone",
    "curated.solver.* before offset .* are gone",
    lambda hand: hand.cut_head(hand.curated, 2),
)


@tampering("curated.solver.* its number is .* by its headers, but .* by its value")
def c23_values_of_two_curated_records_exchanged(hand: Hand) -> None:
    one = hand.curated_record()[0]
    hand.exchange(one, hand.beside(one), values=True)


tampering.altered(
    "c24_weight_altered",
    "has a log_hash that does not follow from the record before it",
    Hand.curated_record,
    weight=3.0,
)
tampering.altered(
    "c25_kept_altered",
    "has a log_hash that does not follow from the record before it",
    Hand.curated_record,
    kept=lambda curated: curated.kept[1:],
)
tampering.altered(
    "c26_oldest_version_altered",
    "its oldest version is .* by its headers, but .* by its value",
    Hand.curated_record,
    min_version=lambda curated: curated.min_version + 1,
)


@tampering("has a curated record, but no outcome says that it was kept", *RESTING)
def c27_curated_record_of_a_number_never_issued(hand: Hand) -> None:
    like, curated = hand.curated_record()
    number = hand.end + 100
    partition, key = number % hand.partitions, task_key("sums", number)
    headers = hand.renumber(like, number=number)
    hand.append(like, replace(curated, number=number), key=key, headers=headers, partition=partition)


@tampering("\\(use 1\\) has a curated record, but no outcome says that it was kept", *RESTING)
def c28_replay_that_nobody_asked_for(hand: Hand) -> None:
    like, curated = hand.curated_record()
    replay: CuratedGroup = replace(curated, use=1, group=b"", kept=(), rewards=())
    hand.append(like, replay, headers=hand.renumber(like, use=1))


# ------------------------------------------------------------------------------------------------------------- outcomes


def kept(hand: Hand) -> Message:
    """That a trained group was kept."""
    return hand.outcome(hand.trained[0].number)[0]


tampering.add(
    "o20_outcome_of_a_dropped_group_repeated",
    "was discarded more than once \\(zero_variance\\)",
    lambda hand: hand.append(hand.outcome(hand.dropped)[0]),
)
tampering.add("o21_outcome_of_a_kept_group_repeated", "was kept more than once", lambda hand: hand.append(kept(hand)))
tampering.add(
    "o22_outcome_of_an_eviction_repeated",
    "was discarded more than once",
    lambda hand: hand.append(hand.outcome(hand.evicted[2].number, "train")[0]),
    FINISHED,
)
tampering.add(
    "o23_outcome_of_a_kept_group_removed",
    "was trained, but no outcome says that it was kept",
    lambda hand: hand.remove(kept(hand)),
)
tampering.add(
    "o24_oldest_outcomes_gone",
    "outcomes.solver.* before offset .* are gone",
    lambda hand: hand.cut_head(hand.outcomes, 2),
)
tampering.add(
    "o25_newest_outcomes_gone",
    "has no outcome and no dead letter|but no outcome says",
    lambda hand: hand.cut_tail(hand.outcomes, 3),
    *RESTING,
)
tampering.add(
    "o26_outcome_of_a_number_never_issued",
    "was concluded, but never issued",
    lambda hand: hand.forge_outcome(hand.end + 100),
)


@tampering("was both trained and discarded \\(expired\\)")
def o27_eviction_of_a_trained_group_forged(hand: Hand) -> None:
    hand.forge_outcome(hand.trained[0].number, verdict="expired", reason="expired", component="train")


# -------------------------------------------------------------------------------------------------------------- batches


tampering.add("b20_batch_repeated", "was trained more than once", lambda hand: hand.append(hand.batch()[0]))
tampering.add("b21_last_batch_repeated", "was trained more than once", lambda h: h.append(h.batch(last(h))[0]))


@tampering("version .* of solver was trained after version")
def b22_batches_reordered(hand: Hand) -> None:
    hand.exchange(hand.batch()[0], hand.batch(hand.middle + 1)[0])


@tampering("was trained after its deadline|not newer than the version that sampled its newest token")
def b23_groups_of_two_batches_exchanged(hand: Hand) -> None:
    (one, first), (other, second) = hand.batch(), hand.batch(hand.middle + 1)
    hand.put(one, replace(first, groups=second.groups))
    hand.put(other, replace(second, groups=first.groups))


tampering.add(
    "b24_newest_batches_gone",
    "no batch record names version|tasks of solver are in flight, but the feeder allows at most",
    lambda hand: hand.cut_tail(hand.batches, 3),
)


@tampering("was trained more than once")
def b25_next_batch_forged_from_the_last(hand: Hand) -> None:
    like, batch = hand.batch(last(hand))
    hand.append(like, replace(batch, version=batch.version + 1, base_hash=batch.weights_hash))


@tampering("was trained from weights .*, but the version before it has weights")
def b26_next_batch_forged_without_groups(hand: Hand) -> None:
    like, batch = hand.batch(last(hand))
    hand.append(like, replace(batch, version=batch.version + 1, groups=(), evictions=()))


def first_group(**fields: Any) -> Any:
    """What makes a batch's groups with another first one."""

    def made(batch: BatchTrained) -> tuple[Any, ...]:
        return (replace(batch.groups[0], **fields), *batch.groups[1:])

    return made


tampering.altered(
    "b27_group_never_issued", "was concluded, but never issued", Hand.batch, groups=first_group(number=10**6)
)
tampering.altered(
    "b28_hash_altered",
    "has weights 0{12} of epoch 0 in .*batches.solver.*, but weights .* in the event",
    Hand.batch,
    weights_hash="0" * 64,
)
tampering.altered(
    "b29_base_altered",
    "was trained from weights 0{12}, but the version before it has weights",
    Hand.batch,
    base_hash="0" * 64,
)
tampering.altered(
    "b30_revision_altered",
    "was trained under recipe revision 5, which is missing or does not name solver",
    Hand.batch,
    revision=5,
)
tampering.altered(
    "b31_epoch_altered", "is of epoch 0, but after a version of epoch 1 it can only be 1 or 2", Hand.batch, epoch=1
)


@tampering("from a batch of 9 groups, but trainer.groups_per_batch of recipe revision 0 is 8")
def b32_group_moved_to_the_next_batch(hand: Hand) -> None:
    (one, first), (other, second) = hand.batch(), hand.batch(hand.middle + 1)
    hand.put(one, replace(first, groups=first.groups[1:]))
    hand.put(other, replace(second, groups=(*second.groups, first.groups[0])))


@tampering("was discarded by the trainer .*, but no batch record says so", FINISHED)
def b33_eviction_removed(hand: Hand) -> None:
    message, batch, group = hand.evicted
    hand.put(message, replace(batch, evictions=tuple(one for one in batch.evictions if one.group != group)))


@tampering("was evicted by the trainer more than once", FINISHED)
def b34_eviction_repeated(hand: Hand) -> None:
    message, batch, _ = hand.evicted
    hand.put(message, replace(batch, evictions=batch.evictions * 2))


tampering.altered(
    "b35_group_taken_away",
    "was read by the trainer and is past its deadline, but was neither trained nor evicted",
    lambda hand: hand.batch(2),
    groups=lambda batch: batch.groups[1:],
)


# -------------------------------------------------------------------------------------------------------------- weights


tampering.add("w20_event_repeated", "was published twice", lambda hand: hand.append(hand.event(hand.middle)[0]))
tampering.add("w21_anchor_repeated", "version 0 of solver was published twice", lambda h: h.append(h.event(0)[0]))


@tampering("version .* of solver was published after version")
def w22_events_reordered(hand: Hand) -> None:
    hand.exchange(hand.event(hand.middle)[0], hand.event(hand.middle + 1)[0])


@tampering("no batch record names version .* of solver, but .*weights|it is not the delta that its record says")
def w23_next_event_forged(hand: Hand) -> None:
    like, event = hand.event(last(hand) - 1)
    hand.append(like, replace(event, version=last(hand) + 1))


tampering.add(
    "w24_oldest_events_gone",
    "weights.solver.* before offset .* are gone|its base, version 1, is not published",
    lambda hand: hand.cut_head(hand.weights, 2),
)
tampering.add(
    "w25_event_of_version_0_removed",
    "its base, version 0, is not published",
    lambda hand: hand.remove(hand.event(0)[0]),
)
tampering.add(
    "w26_base_of_a_delta_removed",
    "its base, version 2, is not published",
    lambda hand: hand.remove(hand.event(2)[0]),
)


tampering.altered(
    "w27_hash_altered",
    "but weights 0{12} of epoch 0 in the event",
    a_delta,
    weights_hash="0" * 64,
)
tampering.altered(
    "w28_anchor_offset_altered",
    "names offset 2 as its anchor, but the nearest whole weights are at offset 0",
    a_delta,
    anchor_offset=2,
)
tampering.altered("w29_epoch_altered", "in the event .*|is a delta of epoch 1", a_delta, epoch=1)
tampering.altered(
    "w30_last_version_not_marked_as_final",
    "the last version of solver is not marked as final",
    lambda hand: hand.event(last(hand)),
    FINISHED,
    final=False,
)


# ---------------------------------------------------------------------------------------------------------- evaluations


tampering.add("v20_result_repeated", "has more than one result", lambda hand: hand.append(hand.all(hand.evals)[0]))
tampering.add("v21_oldest_result_gone", "has all answers, but no result", lambda hand: hand.cut_head(hand.evals, 1))
tampering.add("v22_newest_result_gone", "has all answers, but no result", lambda hand: hand.cut_tail(hand.evals, 1))


@tampering("evaluation of version 3 of solver on sums has a result, but some of its answers are missing", *RESTING)
def v23_result_of_a_version_that_was_not_evaluated(hand: Hand) -> None:
    like, result = hand.decoded(hand.evals, EvalResult)[0]
    hand.append(like, replace(result, version=3), key=b"sums|3")


tampering.altered(
    "v24_version_of_a_result_altered",
    "version 0 of solver on sums has all answers, but no result",
    lambda hand: hand.decoded(hand.evals, EvalResult)[0],
    version=3,
)


def answers(hand: Hand) -> tuple[Message, Message]:
    """The first two of a partition."""
    one, other, *_ = hand.all(hand.eval_groups)
    return one, other


@tampering("has a result that differs from its answers")
def v25_answer_altered(hand: Hand) -> None:
    message, _ = answers(hand)
    hand.put(message, better(codec.decode(message.value, TrajectoryGroup)))


tampering.add(
    "v26_values_of_two_answers_exchanged",
    "eval-groups.* its number is .* by its headers, but .* by its value",
    lambda hand: hand.exchange(*answers(hand), values=True),
)
tampering.add(
    "v27_oldest_answers_gone", "was issued, but never answered", lambda hand: hand.cut_head(hand.eval_groups, 1)
)
tampering.add(
    "v28_newest_answers_gone", "was issued, but never answered", lambda hand: hand.cut_tail(hand.eval_groups, 1)
)


@tampering("has a result, but some of its answers are missing", *RESTING)
def v29_version_of_an_answer_altered(hand: Hand) -> None:
    message, _ = answers(hand)
    hand.put(message, replace(codec.decode(message.value, TrajectoryGroup), asked_version=3))


@tampering("eval.sums:5000 of solver was answered .*, but was never issued")
def v30_answer_to_a_task_never_issued(hand: Hand) -> None:
    like, _ = answers(hand)
    group = replace(codec.decode(like.value, TrajectoryGroup), number=5000)
    hand.append(like, group, key=task_key("eval.sums", 5000), headers=hand.renumber(like, number=5000))


@tampering("eval.sums:5000 has a record on the eval-tasks topic, but the feeder's snapshot does not count it")
def v31_evaluation_task_never_issued(hand: Hand) -> None:
    like = hand.all(hand.eval_tasks)[0]
    task = replace(codec.decode(like.value, Task), number=5000)
    hand.append(like, task, key=task_key("eval.sums", 5000), headers=hand.renumber(like, number=5000))


tampering.add(
    "v32_evaluation_tasks_deleted", "eval-tasks.sums does not exist", lambda hand: hand.delete(hand.eval_tasks)
)


# --------------------------------------------------------------------------------------------------------- dead letters


tampering.add(
    "d20_dead_letter_removed",
    "has no outcome and no dead letter",
    lambda hand: hand.remove(hand.bury(hand.dropped)),
)
tampering.add(
    "d21_bytes_of_a_dead_letter_altered",
    "dead-letters.* holds other bytes than its record",
    lambda hand: hand.bury(hand.dropped, value=b"other"),
)
tampering.add(
    "d22_offset_of_a_dead_letter_altered",
    "dead-letters.* holds other bytes than its record .*@3",
    lambda hand: hand.bury(hand.dropped, offset=3),
)
tampering.add(
    "d23_run_of_a_dead_letter_altered",
    "has no outcome and no dead letter",
    lambda hand: hand.bury(hand.dropped, run_id="other-1"),
)
tampering.add(
    "d24_dead_letter_of_a_number_never_issued",
    "was concluded, but never issued .*dead-letters",
    lambda hand: hand.forge_letter(hand.delivery(), hand.end + 100),
)


@tampering("is a dead letter, but was also trained or discarded")
def d28_number_of_a_dead_letter_altered(hand: Hand) -> None:
    message = hand.bury(hand.dropped)
    letter = codec.decode(message.value, DeadLetter)
    hand.put(message, replace(letter, number=hand.concluded("dropped")[0]))


@tampering("dead-letters.* before offset 1 are gone")
def d25_oldest_dead_letter_gone(hand: Hand) -> None:
    hand.append(hand.bury(hand.dropped))
    hand.cut_head(hand.topics.dead_letters, 1)


@tampering("has no outcome and no dead letter .*dead-letters.* redriven", FINISHED)
def d26_redrive_forged(hand: Hand) -> None:
    hand.bury(hand.dropped, reason="redriven", redrives=0)


tampering.add(
    "d27_dead_letters_deleted", "dead-letters does not exist", lambda hand: hand.delete(hand.topics.dead_letters)
)


# ---------------------------------------------------------------------------------------------------------------- state


def snapshots(hand: Hand, key: bytes) -> list[Message]:
    return [message for message in hand.all(hand.state) if message.key == key]


def repeat_old(key: bytes) -> Any:
    """What makes an old snapshot of a component the newest."""

    def does(hand: Hand) -> None:
        found = snapshots(hand, hand.newest(key)[0].key)
        hand.append(found[0])

    return does


tampering.add("s20_old_feeder_snapshot_repeated", "was (concluded|produced), but never issued", repeat_old(b"feed"))
tampering.add("s21_old_curator_snapshot_repeated", "is newer, and no commit names it", repeat_old(b"curate."))
tampering.add(
    "s22_feeder_snapshots_removed",
    "was concluded, but never issued",
    lambda hand: hand.remove(*snapshots(hand, b"feed")),
)
tampering.add(
    "s23_curator_snapshots_removed",
    "restores .* from the snapshot at offset .*, but that snapshot is missing",
    lambda hand: hand.remove(*snapshots(hand, hand.newest(b"curate.")[0].key)),
)


@tampering("the snapshot .* cannot be read: it does not give the offset up to which")
def s24_snapshots_of_two_partitions_exchanged(hand: Hand) -> None:
    one = hand.newest(b"curate.")[0]
    others = [m for m in hand.all(hand.state) if m.key.startswith(b"curate.") and m.key != one.key]
    hand.exchange(one, others[-1], values=True)


tampering.add(
    "s25_newest_state_gone", "was (concluded|produced), but never issued", lambda hand: hand.cut_tail(hand.state, 40)
)


@tampering("but the feeder's snapshot does not count it as issued")
def s26_next_number_lowered(hand: Hand) -> None:
    hand.change_body(b"feed", lambda body: body["next"].update(sums=body["next"]["sums"] - 3))


tampering.altered(
    "s27_hash_of_a_checkpoint_altered",
    "but weights 0{12} of epoch 0 in the checkpoint",
    lambda hand: hand.pointer(4),
    weights_hash="0" * 64,
)


@tampering("the checkpoint of version 3 of solver, .*: it holds version 4 instead")
def s28_checkpoint_forged(hand: Hand) -> None:
    like, pointer = hand.pointer(4)
    hand.append(like, replace(pointer, version=3), key=b"checkpoint|solver|3")


# ----------------------------------------------------------------------------------------------------------- committed


tampering.add(
    "k20_workers_commit_forward",
    "rollout.sums has committed offset .*, but the offsets of that partition are",
    lambda hand: hand.commit(hand.topics.rollout_group("sums"), lambda offset: offset + 10, hand.tasks),
)
tampering.add(
    "k21_curators_commit_back",
    "has committed offset .*, but its snapshot .* was taken",
    lambda hand: hand.commit(hand.topics.curate_group("solver"), lambda _: 1),
)
tampering.add(
    "k22_evaluators_commit_forward",
    "has committed offset .*eval-tasks.sums.*, but the offsets of that partition are",
    lambda hand: hand.commit(hand.topics.rollout_group("sums"), lambda offset: offset + 10, hand.eval_tasks),
)
tampering.add(
    "k23_commit_that_names_a_snapshot_to_come",
    "names the snapshot at offset 9999 of `state`, but that snapshot is missing",
    lambda hand: hand.commit(hand.topics.curate_group("solver"), lambda offset: offset, metadata='{"snapshot": 9999}'),
)


@tampering("but that snapshot is missing: the newest one is")
def k24_newest_snapshot_of_a_partition_removed(hand: Hand) -> None:
    hand.remove(hand.newest(b"curate.")[0])


# -------------------------------------------------------------------------------------------------------------- objects


tampering.add("x20_byte_of_a_delta_altered", "has sha256", lambda hand: hand.spoil(a_delta(hand)[1].weights))
tampering.add("x21_byte_of_an_anchor_altered", "has sha256", lambda hand: hand.spoil(hand.event(0)[1].weights))
tampering.add("x22_byte_of_a_checkpoint_altered", "has sha256", lambda h: h.spoil(h.pointer(4)[1].checkpoint))
tampering.add(
    "x23_byte_beside_an_anchor_altered", "has sha256", lambda hand: hand.spoil(hand.event(0)[1].files[0].claim)
)
tampering.add(
    "x24_checkpoint_gone", "checkpoint of version 0 .* does not exist", lambda h: h.lose(h.pointer(0)[1].checkpoint)
)


@tampering("has sha256")
def x25_deltas_exchanged(hand: Hand) -> None:
    deltas = [event.weights for _, event in hand.decoded(hand.weights, WeightsPublished) if event.kind == "delta"]
    hand.exchange_objects(deltas[0], deltas[1])
