"""More ways to break a promise in one topic or in several at once, by an author who had not seen the audit's code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

from tampering_hand import Hand, with_recipe
from tamperings import FINISHED, LIVE, STOPPED, Catalogue, a_delta
from tamperings_of_topics import RESTING, last

from headrace.infra.kafka.clients import Message
from headrace.schemas import codec
from headrace.schemas.headers import outcome_stamp
from headrace.schemas.records import (
    BatchTrained,
    CheckpointPointer,
    ClaimCheck,
    CuratedGroup,
    EvalResult,
    Failure,
    GroupUse,
    Outcome,
    Position,
    Task,
    TierResult,
    TrajectoryGroup,
    WeightsPublished,
)

tampering = Catalogue()
NEW = tampering.all


def empty(message: Message, hand: Hand) -> Message:
    """A record without a value, after all others of its partition."""
    return hand.append(message, value=b"", is_null=True)


def alter(found: tuple[Message, Any], hand: Hand, **fields: Any) -> Message:
    message, record = found
    return hand.put(message, replace(record, **fields))


# --------------------------------------------------------------------------------------------------------------- recipe


tampering.add(
    "r60_last_version_of_the_recipe_raised",
    "the run is marked as finished, but solver is at version 16 of 1000",
    lambda hand: hand.change_recipes(lambda recipe: recipe["trainer"].update(steps=1000)),
    FINISHED,
)
tampering.add(
    "r61_number_of_evaluated_problems_altered",
    "a result that differs from its answers .*: problems 8 -> 16",
    lambda hand: hand.change_recipes(lambda recipe: recipe["evaluate"].update(problems=8)),
)
tampering.add(
    "r62_checkpoints_more_often_in_the_recipe",
    "has no checkpoint record on `state`, although its recipe revision asks for a checkpoint",
    lambda hand: hand.change_recipes(lambda recipe: recipe["trainer"].update(checkpoint_every=2)),
)
tampering.altered(
    "r63_revision_marked_as_a_swap",
    "recipe revision 0 has two different contents \\(whether `headrace swap` wrote it\\)",
    Hand.revision,
    FINISHED,
    swapped=True,
)
tampering.altered(
    "r64_schemas_gone", "a schema that no record of the recipe topic holds", Hand.revision, LIVE, schemas={}
)


@tampering("trajectories.solver.*a schema that no record of the recipe topic holds", LIVE)
def r65_field_renamed_in_the_schemas(hand: Hand) -> None:
    message, revision = hand.revision()
    texts = {name: text.replace('"logprobs"', '"probabilities"') for name, text in revision.schemas.items()}
    hand.put(message, replace(revision, schemas=texts))


@tampering("topic .*tasks.other does not exist")
def r66_workflow_renamed_in_a_forged_revision(hand: Hand) -> None:
    message, revision = hand.revision()
    text = with_recipe(revision.recipe, lambda recipe: recipe.update(workflows={"other": recipe["workflows"]["sums"]}))
    hand.append(message, replace(revision, revision=1, recipe=text), key=b"1")


# ---------------------------------------------------------------------------------------------------------------- tasks

NOBODY_PLAYS_IT = "is in flight, but its task does not wait for a worker, and no worker has produced its group"


def waiting_task(hand: Hand) -> Message:
    return hand.all(hand.tasks)[-1]


@tampering(NOBODY_PLAYS_IT, STOPPED)
def t60_waiting_task_of_another_run(hand: Hand) -> None:
    message = waiting_task(hand)
    task = replace(codec.decode(message.value, Task), run_id="other-1")
    hand.put(message, task, headers=hand.renumber(message, run_id="other-1"))


@tampering(NOBODY_PLAYS_IT, STOPPED)
def t61_waiting_task_exchanged_with_a_played_one(hand: Hand) -> None:
    message = waiting_task(hand)
    hand.exchange(message, hand.run.messages[message.topic, message.partition][0])


tampering.add("t62_waiting_task_gone", NOBODY_PLAYS_IT, lambda hand: hand.remove(waiting_task(hand)), STOPPED)
tampering.add(
    "t63_waiting_task_without_a_value",
    "tasks.sums.* cannot be used, but has no dead letter",
    lambda hand: hand.put(waiting_task(hand), value=b"", is_null=True),
    STOPPED,
)
tampering.add(
    "t64_headers_of_a_waiting_task_gone",
    "tasks.sums.* cannot be used, but has no dead letter: header 'run_id' is missing",
    lambda hand: hand.put(waiting_task(hand), headers=[]),
    STOPPED,
)
tampering.add(
    "t65_key_of_a_waiting_task_altered",
    "its key is b'sums:1', but its headers name sums:",
    lambda hand: hand.put(waiting_task(hand), key=b"sums:1"),
    STOPPED,
)


# --------------------------------------------------------------------------------------------------------- trajectories

MATCHES_NO_GROUP = "has an outcome of a group that no worker delivered"
NO_OUTCOME = "was (produced|read by the curators), but has no outcome and no dead letter"


def of_trained(says: str, name: str, change: Callable[[TrajectoryGroup], TrajectoryGroup], **headers: Any) -> None:
    """Keep a change of a trained group in its trajectories and its curated record."""
    tampering.add(name, says, lambda hand: hand.change_group(hand.trained[0].number, change, **headers))


def observed(group: TrajectoryGroup) -> TrajectoryGroup:
    """The group, with what the first trajectory generated as an observation."""
    first, *others = group.trajectories
    [sequence] = first.sequences
    spans = tuple(replace(span, kind="observation") for span in sequence.spans)
    return replace(group, trajectories=(replace(first, sequences=(replace(sequence, spans=spans),)), *others))


of_trained(MATCHES_NO_GROUP, "j61_generated_span_made_an_observation", observed)
of_trained(
    MATCHES_NO_GROUP,
    "j62_failure_added",
    lambda group: replace(group, failures=(Failure(sample=1, reason="error"),)),
)
of_trained(
    "it is of policy 'other', but on the topic of another policy",
    "j63_policy_of_a_group_altered",
    lambda group: replace(group, policy="other"),
    policy="other",
)
of_trained(
    "it is of run id b'other-1', not of this run",
    "j64_run_of_a_group_altered",
    lambda group: replace(group, run_id="other-1"),
    run_id="other-1",
)


tampering.add(
    "j68_headers_of_a_delivery_gone",
    "trajectories.solver.* cannot be used, but has no dead letter: header 'run_id' is missing",
    lambda hand: hand.put(hand.delivery(), headers=[]),
)
tampering.add(
    "j69_second_number_in_the_headers_of_a_delivery",
    "was curated, but no worker produced it",
    lambda hand: hand.put(hand.delivery(), headers=[*hand.delivery().headers, ("number", b"3")]),
)


@tampering("was trained after its deadline")
def j70_group_sampled_by_an_older_version_in_all_topics(hand: Hand) -> None:
    message, curated = hand.curated_record()
    version = curated.min_version - 1

    def older(group: TrajectoryGroup) -> TrajectoryGroup:
        made = []
        for trajectory in group.trajectories:
            [sequence] = trajectory.sequences
            runs = sequence.version_runs.copy()
            runs[-2] = version
            made.append(replace(trajectory, sequences=(replace(sequence, version_runs=runs),)))
        return replace(group, trajectories=tuple(made))

    hand.change_group(curated.number, older, min_version=version, max_version=version)
    message, curated = hand.curated_record()
    hand.put(message, replace(curated, min_version=version, deadline_version=curated.deadline_version - 1))
    message, outcome = hand.outcome(curated.number)
    made = replace(outcome, min_version=version, max_version=version)
    hand.put(message, made, headers=outcome_stamp(made).to_headers())


def named(record: Any, number: int) -> Any:
    """A record of a group under another number."""
    if isinstance(record, CuratedGroup):
        group = named(codec.decode(record.group, TrajectoryGroup), number)
        return replace(record, number=number, group=codec.encode(group))
    if isinstance(record, TrajectoryGroup):
        ids = tuple(f"sums:{number}:{sample}" for sample in range(len(record.trajectories)))
        trajectories = tuple(replace(one, id=name) for one, name in zip(record.trajectories, ids, strict=True))
        return replace(record, number=number, episode_ids=ids, trajectories=trajectories)
    return replace(record, number=number)


# -------------------------------------------------------------------------------------------------------------- curated


tampering.altered(
    "c60_kept_trajectory_that_there_is_not",
    "`kept` must be indices of these trajectories",
    Hand.curated_record,
    kept=lambda curated: (*curated.kept, 99),
)
tampering.altered(
    "c61_reward_of_a_kept_trajectory_not_finite",
    "the rewards of its kept trajectories \\[0\\] are not finite",
    Hand.curated_record,
    rewards=lambda curated: (float("nan"), *curated.rewards[1:]),
)
tampering.altered(
    "c62_first_use_that_names_an_earlier_record",
    "has a log_hash that does not follow from the record before it",
    Hand.curated_record,
    first_back=3,
)
tampering.altered("c64_bytes_gone", "curated.solver.* cannot be used", Hand.curated_record, group=b"")
tampering.add(
    "c65_record_without_a_value",
    "curated.solver.* cannot be used, but has no dead letter|has more than one curated record",
    lambda hand: empty(hand.curated_record()[0], hand),
)


# ------------------------------------------------------------------------------------------------------------- outcomes


def change_outcome(hand: Hand, number: int, **fields: Any) -> None:
    """Change the curator's outcome of a number, with its key and headers."""
    message, outcome = hand.outcome(number)
    made = replace(outcome, **fields)
    stamp = outcome_stamp(made)
    hand.put(message, made, key=stamp.key, headers=stamp.to_headers())


def of_kept(name: str, says: str, *runs: str, **fields: Any) -> None:
    tampering.add(name, says, lambda hand: change_outcome(hand, hand.trained[0].number, **fields), *runs)


def of_dropped(name: str, says: str, *runs: str, **fields: Any) -> None:
    tampering.add(name, says, lambda hand: change_outcome(hand, hand.dropped, **fields), *runs)


of_kept("o63_policy_of_a_kept_group", "it is of policy other, but on the topic of another policy", policy="other")
of_kept("o64_run_of_a_kept_group", "was trained, but no outcome says that it was kept", run_id="other-1")
of_kept("o65_verdict_that_there_is_not", "was both trained and discarded \\(lost\\)", verdict="lost")
of_kept("o66_use_of_a_kept_group", "\\(use 1\\) was kept, but has no curated record", use=1)
of_kept("o67_kept_group_as_a_trajectory", "was trained, but no outcome says that it was kept", level="trajectory")
of_kept("o68_trained_as_dropped", "was both trained and discarded", verdict="dropped", reason="zero_variance")
of_dropped(
    "o70_run_of_a_dropped_group",
    NO_OUTCOME,
    run_id="other-1",
)
of_dropped("o71_use_of_a_dropped_group", NO_OUTCOME, use=1)
of_dropped("o72_dropped_group_as_a_trajectory", NO_OUTCOME, level="trajectory")
of_dropped("o73_dropped_as_kept", "was kept, but has no curated record", verdict="kept", reason="")
of_dropped(
    "o74_dropped_as_expired_in_the_trainer",
    "was discarded by the trainer \\(expired\\), but no batch record says so",
    *RESTING,
    verdict="expired",
    reason="expired",
    component="train",
)


tampering.add(
    "o76_outcome_without_a_value",
    "outcomes.solver.* cannot be used, but has no dead letter",
    lambda hand: empty(hand.outcome(hand.dropped)[0], hand),
)


@tampering("was both trained and discarded \\(zero_variance\\)")
def o77_verdicts_of_two_groups_exchanged(hand: Hand) -> None:
    change_outcome(hand, hand.trained[0].number, verdict="dropped", reason="zero_variance")
    change_outcome(hand, hand.dropped, verdict="kept", reason="")


# -------------------------------------------------------------------------------------------------------------- batches


@tampering("was evicted by the trainer for another reason than its outcome gives \\(run_end\\)", FINISHED)
def b60_reason_of_an_eviction_altered(hand: Hand) -> None:
    message, batch, group = hand.evicted
    evictions = tuple(replace(one, verdict="expired") if one.group == group else one for one in batch.evictions)
    hand.put(message, replace(batch, evictions=evictions))


tampering.altered(
    "b61_run_of_a_batch", "neither trained nor evicted|no batch record names", Hand.batch, run_id="other-1"
)
tampering.altered("b62_variant_of_a_batch", "is of policy solver.x, but on the topic of", Hand.batch, variant="x")
tampering.add(
    "b63_batch_without_a_value",
    "batches.solver.* cannot be used, but has no dead letter",
    lambda hand: empty(hand.batch()[0], hand),
)


@tampering("another numerics fingerprint than the version before it, so it must begin a new epoch")
def b64_fingerprint_altered_from_the_middle_on(hand: Hand) -> None:
    for version, (message, batch) in hand.versions.items():
        if version >= hand.middle:
            hand.put(message, replace(batch, fingerprint={**batch.fingerprint, "torch": "0.0"}))


tampering.altered(
    "b65_first_use_as_a_replay",
    "\\(use 1\\) was trained, but no outcome says that it was kept",
    Hand.batch,
    groups=lambda batch: (replace(batch.groups[0], use=1), *batch.groups[1:]),
)


@tampering("the trainer's position on .*curated.solver.* is .*, but the partition ends at", *RESTING)
def b66_position_after_the_end(hand: Hand) -> None:
    """A record that only says how far the trainer has read."""
    message, batch = hand.batch(last(hand))
    ahead = tuple(Position(one.partition, one.offset + 40) for one in batch.positions)
    hand.append(message, replace(batch, version=-1, groups=(), evictions=(), positions=ahead))


@tampering("was trained on the group at .*, but its trainer had read that partition only to offset")
def b67_group_exchanged_with_one_that_was_read_later(hand: Hand) -> None:
    """Both keep their deadlines, and both were sampled before."""
    (one, first), (other, second), early, late = exchangeable(hand)
    hand.put(one, replace(first, groups=tuple(late if use == early else use for use in first.groups)))
    hand.put(other, replace(second, groups=tuple(early if use == late else use for use in second.groups)))


def exchangeable(hand: Hand) -> tuple[Any, Any, GroupUse, GroupUse]:
    """Two batches in order, a group of the first with room to its deadline, and a later group of the second."""
    deadlines = {one.number: one.deadline_version for _, one in hand.decoded(hand.curated, CuratedGroup)}
    newest = {int(dict(m.headers)["number"]): int(dict(m.headers)["max_version"]) for m in hand.all(hand.curated)}
    for version in sorted(hand.versions)[:-1]:
        first, second = hand.versions[version], hand.versions[version + 1]
        read = {position.partition: position.offset for position in first[1].positions}
        later = [use for use in second[1].groups if use.offset >= read[use.partition] and newest[use.number] < version]
        early = [use for use in first[1].groups if deadlines[use.number] >= version]
        if early and later:
            return first, second, early[0], later[0]
    raise AssertionError("no two groups can be exchanged")


@tampering("is not published, but .* names it|but no batch record says so|more than|are in flight", FINISHED)
def b68_newest_version_gone_from_all_topics_of_the_trainer(hand: Hand) -> None:
    rewind(hand, last(hand) - 1)


@tampering("is not published, but .* names it|are in flight, but the feeder allows at most")
def b69_trainer_rewound_to_the_middle(hand: Hand) -> None:
    rewind(hand, hand.middle)
    hand.remove(*(m for m, outcome in hand.decoded(hand.outcomes, Outcome) if outcome.component == "train"))


def rewind(hand: Hand, version: int) -> None:
    """Take away what the trainer wrote after a version: batches, weights, checkpoints."""
    end = hand.batch(version)[0].offset
    hand.remove(*(message for message in hand.all(hand.batches) if message.offset > end))
    hand.remove(*(m for m, event in hand.decoded(hand.weights, WeightsPublished) if event.version > version))
    prefix = f"checkpoint|{hand.policy}|"
    gone = [m for m in hand.all(hand.state) if m.key.decode().startswith(prefix)]
    hand.remove(*(m for m in gone if int(m.key.decode().removeprefix(prefix)) > version))


# -------------------------------------------------------------------------------------------------------------- weights


tampering.altered(
    "w60_delta_as_merged", "is a delta of .*, but its base, version 2, is not published", a_delta, kind="merged"
)
tampering.altered(
    "w61_delta_as_anchor", "names offset 0 as its anchor, but the nearest whole weights are at", a_delta, kind="anchor"
)
tampering.altered(
    "w62_anchor_as_whole",
    "version 5 of solver are .*, but that version is not published",
    lambda h: h.event(5),
    kind="whole",
)
tampering.altered(
    "w63_anchor_as_delta",
    "names offset 10 as its anchor, but the nearest whole weights are at offset 0",
    lambda hand: hand.event(5),
    kind="delta",
    base_version=4,
)
tampering.altered("w64_run_of_an_event", "version 2 of solver is not published, but", a_delta, run_id="other-1")
tampering.altered(
    "w65_policy_of_an_event", "it is of policy other, but on the topic of another", a_delta, policy="other"
)
tampering.altered(
    "w66_base_hash_altered",
    "is a delta of epoch 0 on weights 0{12}, but its base, version 1, has weights",
    a_delta,
    base_hash="0" * 64,
)
tampering.altered(
    "w67_file_beside_the_first_anchor_renamed",
    "files that workers need to serve these weights are missing: config.json",
    lambda hand: hand.event(0),
    files=lambda event: tuple(replace(one, name=one.name.replace("config.json", "c.json")) for one in event.files),
)
tampering.altered(
    "w68_size_of_a_delta_altered",
    "version 2 of solver, announced by .* has sha256",
    a_delta,
    weights=lambda event: replace(event.weights, size_bytes=event.weights.size_bytes + 1),
)
tampering.altered(
    "w69_object_outside_the_run",
    "elsewhere/x does not exist in the store",
    a_delta,
    weights=lambda event: replace(event.weights, key="elsewhere/x"),
)
tampering.add(
    "w70_event_without_a_value",
    "weights.solver.* cannot be used, but has no dead letter",
    lambda hand: empty(hand.event(0)[0], hand),
)


@tampering("the whole weights of version 3 of solver, announced by .*: its object .* has weights")
def w71_whole_weights_of_another_version(hand: Hand) -> None:
    message, event = hand.event(5)
    hand.append(message, replace(event, kind="whole", version=3, weights_hash=hand.event(3)[1].weights_hash))


@tampering("it is not the delta that its record says: base_version is 2 instead of 1")
def w72_deltas_exchanged_in_the_events(hand: Hand) -> None:
    one, other = hand.event(2), hand.event(3)
    alter(one, hand, weights=other[1].weights)
    alter(other, hand, weights=one[1].weights)


@tampering("it is not the delta that its record says: base_version is 5 instead of 6", LIVE)
def w73_newest_version_made_from_the_delta_before_with_its_hash(hand: Hand) -> None:
    hand.cut_tail(hand.batches, len(hand.versions) - 7)
    hand.cut_tail(hand.weights, len(hand.versions) - 7)
    before = hand.event(6)[1]
    alter(hand.event(7), hand, weights=before.weights, weights_hash=before.weights_hash)
    message = next(m for m, batch in hand.decoded(hand.batches, BatchTrained) if batch.version == 7)
    hand.put(message, replace(codec.decode(message.value, BatchTrained), weights_hash=before.weights_hash))


@tampering("version 0 of solver, announced by .*: its object .* has weights")
def w74_first_weights_forged_with_the_hash_of_their_bytes(hand: Hand) -> None:
    message, event = hand.event(0)
    data = bytearray(hand.run.objects[event.weights.key])
    data[-3] ^= 1
    hand.put(message, replace(event, weights=stored(hand, event.weights, bytes(data))))


def stored(hand: Hand, like: ClaimCheck, data: bytes) -> ClaimCheck:
    """Put other bytes into the store, and return a claim of them."""
    digest = sha256(data).hexdigest()
    made = replace(like, key=like.key.replace(like.sha256, digest), sha256=digest, size_bytes=len(data))
    hand.run.objects[made.key] = data
    return made


@tampering("is not the delta that its record says: epoch is 0 instead of 1|but its base, version .* of epoch 0")
def w75_new_epoch_from_the_middle_in_all_records(hand: Hand) -> None:
    of_versions: tuple[tuple[str, Any], ...] = ((hand.batches, BatchTrained), (hand.weights, WeightsPublished))
    for topic, kind in of_versions:
        for message, record in hand.decoded(topic, kind):
            if record.version >= hand.middle:
                hand.put(message, replace(record, epoch=1))
    for message in hand.all(hand.state):
        if message.key.startswith(b"checkpoint|"):
            pointer = codec.decode(message.value, CheckpointPointer)
            hand.put(message, replace(pointer, epoch=int(pointer.version >= hand.middle)))


# ---------------------------------------------------------------------------------------------------------- evaluations


def result(hand: Hand) -> tuple[Message, EvalResult]:
    return hand.decoded(hand.evals, EvalResult)[0]


def of_result(name: str, **fields: Any) -> None:
    [field] = fields
    tampering.altered(name, f"a result that differs from its answers .*{field}", result, **fields)


of_result("v60_problems_of_a_result", problems=15)
of_result("v61_samples_of_a_result", samples=2)
of_result("v62_pass_at_k_of_a_result", pass_at_k={"1": 0.9})
of_result("v63_length_of_a_result", mean_length=1.0)
of_result("v64_failures_of_a_result", failures=3)
of_result("v65_tiers_of_a_result", tiers=(TierResult("a", 1, 1, 1.0), TierResult("b", 1, 1, 1.0)))
of_result("v66_error_of_a_result", standard_error=0.9)
tampering.altered("v67_workflow_of_a_result", "has all answers, but no result", result, workflow="other")
tampering.altered("v68_run_of_a_result", "has all answers, but no result", result, run_id="other-1")
tampering.add(
    "v69_result_without_a_value",
    "evals.solver.* cannot be read as a result",
    lambda hand: empty(result(hand)[0], hand),
)


@tampering("has all answers, but no result")
def v70_result_gone_and_not_counted_by_the_evaluator(hand: Hand) -> None:
    hand.run.again = ()
    hand.remove(result(hand)[0])
    hand.change_body(b"evaluate", lambda body: body.update(done=body["done"][1:]))


# ---------------------------------------------------------------------------------- state, commits and dead letters


tampering.altered(
    "s60_run_of_a_curators_snapshot",
    "the snapshot .* of .*trajectories.solver.* is of another run, with the id 'other-1'",
    lambda hand: hand.newest(b"curate."),
    run_id="other-1",
)
tampering.add(
    "s61_curators_snapshot_without_a_value",
    "the snapshot .* of .*trajectories.solver.* cannot be read",
    lambda hand: empty(hand.newest(b"curate.")[0], hand),
)


@tampering("names the snapshot at offset .* of `state`, but that snapshot is missing")
def s62_curators_snapshot_on_another_partition(hand: Hand) -> None:
    message = hand.newest(b"curate.")[0]
    hand.run.messages.setdefault((hand.state, (message.partition + 1) % hand.partitions), [])
    hand.append(message, partition=(message.partition + 1) % hand.partitions)
    hand.remove(message)


tampering.altered("s63_epoch_of_a_checkpoint", "of epoch 1 in the checkpoint", lambda hand: hand.pointer(4), epoch=1)
tampering.altered(
    "s64_run_of_a_checkpoint",
    "version 4 of solver has no checkpoint record on `state`, although",
    lambda hand: hand.pointer(4),
    run_id="other-1",
)
tampering.altered(
    "s65_checkpoint_of_no_object", "the record names no object", lambda hand: hand.pointer(4), checkpoint=None
)


@tampering(
    "no batch record names version 900 of solver|checkpoint of version 900 of solver, .*: it holds version 4 instead"
)
def s66_checkpoint_of_a_version_to_come(hand: Hand) -> None:
    message, pointer = hand.pointer(4)
    hand.append(message, replace(pointer, version=900), key=b"checkpoint|solver|900")


@tampering("eval.sums:3 of solver was answered or is a dead letter, but was never issued")
def s67_next_evaluation_lowered(hand: Hand) -> None:
    hand.change_body(b"feed", lambda body: body["next_evaluation"].update(sums=3))


tampering.add(
    "k60_curators_commit_that_names_no_snapshot",
    "names no snapshot, but the snapshot .* is newer, and no commit names it",
    lambda hand: hand.commit(hand.topics.curate_group("solver"), lambda offset: offset, metadata=""),
)
tampering.add(
    "k61_workers_commit_past_waiting_tasks",
    NOBODY_PLAYS_IT,
    lambda hand: hand.commit(hand.topics.rollout_group("sums"), lambda offset: offset + 2, hand.tasks),
    STOPPED,
)


@tampering("has no committed offset of .*trajectories.solver\\[0\\], but its snapshot")
def k62_commit_of_one_partition_gone(hand: Hand) -> None:
    for asked in hand.run.asked:
        for group, told in asked.items():
            if group.name == hand.topics.curate_group("solver"):
                asked[group] = replace(told, commits={one: c for one, c in told.commits.items() if one[1]})


tampering.add(
    "d60_dead_letter_about_a_record_that_there_is_not",
    "dead-letters.* is about .*@1000000, but there is no record there",
    lambda hand: hand.forge_letter(hand.delivery(), -1, stream="", policy="", value=b"", offset=10**6),
)
tampering.add(
    "d61_policy_of_a_dead_letter_altered",
    NO_OUTCOME,
    lambda hand: hand.bury(hand.dropped, policy="other"),
)
tampering.add(
    "d62_use_of_a_dead_letter_altered",
    NO_OUTCOME,
    lambda hand: hand.bury(hand.dropped, use=1),
)


@tampering("was sent back, but before it there is no dead letter at that offset", *RESTING)
def d63_group_that_was_never_dead_sent_back(hand: Hand) -> None:
    [message] = hand.about(hand.trajectories, hand.dropped)
    number, headers = hand.dropped, dict(message.headers)
    hand.remove(hand.outcome(number)[0])
    hand.forge_letter(message, number, reason="redriven", key=message.key, headers=headers)
