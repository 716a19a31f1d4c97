"""Ways to break a promise in a run's log, and what the audit must say of each.

Some of each part of the audit, over the records of real components. tests/unit/test_audit*.py have its every sentence.
Part of the catalogue was written by authors who had not seen the audit's code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from recorded_run import Runs
from tampering_hand import Hand, with_recipe

from headrace.infra.kafka.clients import Message
from headrace.schemas import codec
from headrace.schemas.records import (
    CuratedGroup,
    EvalResult,
    Eviction,
    RecipeRevision,
    Task,
    TrajectoryGroup,
    WeightsPublished,
)

FINISHED, LIVE, STOPPED = "finished", "live", "stopped"
BOTH = (FINISHED, LIVE)


@dataclass(frozen=True)
class Tampering:
    """One, with a pattern that a sentence of the audit must match."""

    name: str
    does: Callable[[Hand], object]
    says: str
    runs: tuple[str, ...] = BOTH

    @property
    def on(self) -> tuple[str, ...]:
        """The records that it is tried on; what is in flight is tried at rest too."""
        return tuple(one for run in self.runs for one in ((LIVE, STOPPED) if run == LIVE else (run,)))


def named(case: tuple[Tampering, str]) -> str:
    return f"{case[0].name}-{case[1]}"


def check(runs: Runs, tampering: Tampering, run: str) -> None:
    """See that the audit names a tampering with the record of a run."""
    hand = Hand(runs.records[run])
    tampering.does(hand)
    found = hand.run.audit()
    assert not found.ok
    assert any(re.search(tampering.says, problem) for problem in found.problems), found.problems


Does = Callable[[Hand], object]


class Catalogue:
    """Tamperings with one kind of run: a function by its decorator, or a line where an expression says it.

    Args:
        policy: Whose records they are given; empty for those of the run's first policy.
        of: The list to add to, if it is one that there is.
    """

    def __init__(self, policy: str = "", of: list[Tampering] | None = None) -> None:
        self.all: list[Tampering] = [] if of is None else of
        self._policy = policy

    def about(self, policy: str) -> Catalogue:
        """Return the same catalogue, for the records of another policy or shadow."""
        return Catalogue(policy, self.all)

    def __call__(self, says: str, *runs: str) -> Callable[[Does], Does]:
        """Keep a function under its name."""

        def kept(does: Does) -> Does:
            self.add(does.__name__, says, does, *runs)
            return does

        return kept

    def add(self, name: str, says: str, does: Does, *runs: str) -> None:
        """Keep what one expression says."""
        policy = self._policy
        of_policy = (lambda hand: does(hand.of(policy))) if policy else does
        self.all.append(Tampering(name, of_policy, says, runs or BOTH))

    def altered(
        self, name: str, says: str, find: Callable[[Hand], tuple[Message, Any]], /, *runs: str, **fields: Any
    ) -> None:
        """Keep a change of a record's fields, to a value or to what a function makes of the record."""

        def does(hand: Hand) -> None:
            message, record = find(hand)
            made = {field: value(record) if callable(value) else value for field, value in fields.items()}
            hand.put(message, replace(record, **made))

        self.add(name, says, does, *runs)


tampering = Catalogue()
CATALOGUE = tampering.all


# --------------------------------------------------------------------------------------------------------------- recipe


@tampering("recipe revision 0 has two different contents")
def r8_revision_repeated_with_another_chain(hand: Hand) -> None:
    message, revision = hand.revision()
    text = with_recipe(revision.recipe, lambda recipe: recipe["trainer"].update(learning_rate=1.0))
    hand.append(message, replace(revision, recipe=text))


@tampering("deadline")
def r6_recipe_of_another_staleness_bound(hand: Hand) -> None:
    hand.change_recipes(lambda recipe: recipe["trainer"].update(max_staleness=0))


@tampering("schema")
def r11_schema_of_another_record(hand: Hand) -> None:
    for message, revision in hand.decoded(hand.recipe, RecipeRevision):
        hand.put(message, replace(revision, schemas={**revision.schemas, "Outcome": revision.schemas["Task"]}))


# ---------------------------------------------------------------------------------------------------------------- tasks


@tampering("tasks.sums.*but the offsets of that partition are", LIVE)
def t5_tasks_cut_past_what_workers_have_done(hand: Hand) -> None:
    hand.commit(hand.topics.rollout_group("sums"), lambda offset: offset - 5, hand.tasks)
    for partition_id in [partition_id for partition_id in hand.run.messages if partition_id[0] == hand.tasks]:
        committed = next(t for a in reversed(hand.run.asked) for g, t in a.items() if g.topic == hand.tasks).commits
        hand.run.messages[partition_id] = [
            m for m in hand.run.messages[partition_id] if m.offset >= committed[partition_id].offset + 3
        ]
        hand.run.begins[partition_id] = committed[partition_id].offset + 3
    for asked in hand.run.asked:
        for group, told in asked.items():
            if group.topic == hand.tasks:
                asked[group] = replace(told, begin={p: hand.run.begins[p] for p in told.begin})


@tampering("ghost", FINISHED, STOPPED)  # in a live run, a worker may still read it and write a dead letter
def t11_task_of_a_stream_that_there_is_not(hand: Hand) -> None:
    like = hand.all(hand.tasks)[-1]
    task = replace(codec.decode(like.value, Task), stream="ghost", number=0)
    hand.append(like, task, key=b"ghost:0", headers=hand.renumber(like, stream="ghost", number=0))


@tampering("is in flight, but its task does not wait for a worker, and no worker has produced its group", STOPPED)
def t3_number_that_is_nowhere(hand: Hand) -> None:
    hand.change_body(b"feed", lambda body: body["next"].update(sums=body["next"]["sums"] + 1))


# --------------------------------------------------------------------------------------------------------- trajectories


@tampering("was curated, but no worker produced it")
def j1_trajectory_of_a_trained_group_removed(hand: Hand) -> None:
    hand.remove(*hand.about(hand.trajectories, hand.trained[0].number))


def better(group: TrajectoryGroup) -> TrajectoryGroup:
    first, *others = group.trajectories
    return replace(group, trajectories=(replace(first, reward=first.reward + 1.0), *others))


@tampering("has an outcome of a group that no worker delivered")
def j2_trajectory_altered_afterwards(hand: Hand) -> None:
    for message in hand.about(hand.trajectories, hand.trained[0].number):
        hand.put(message, better(codec.decode(message.value, TrajectoryGroup)))


@tampering("its number is .* by its headers, but .* by its value")
def j4_values_of_two_groups_exchanged(hand: Hand) -> None:
    one = hand.delivery()
    other = next(m for m in hand.all(hand.trajectories) if m.partition == one.partition and m.key != one.key)
    hand.exchange(one, other, values=True)


def of_version(version: int) -> Callable[[TrajectoryGroup], TrajectoryGroup]:
    def change(group: TrajectoryGroup) -> TrajectoryGroup:
        first, *others = group.trajectories
        sequence, *more = first.sequences
        runs = sequence.version_runs.copy()
        runs[-2] = version
        sequence = replace(sequence, version_runs=runs)
        return replace(group, trajectories=(replace(first, sequences=(sequence, *more)), *others))

    return change


@tampering("was trained into a version that is not newer than the version that sampled its newest token")
def j6_tokens_of_a_version_that_never_was(hand: Hand) -> None:
    version = hand.middle + 50
    hand.change_group(hand.trained[0].number, of_version(version), max_version=version)


@tampering("never issued")
def j9c_group_of_a_stream_that_there_is_not(hand: Hand) -> None:
    like = hand.about(hand.trajectories, hand.dropped)[0]
    group = replace(codec.decode(like.value, TrajectoryGroup), stream="ghost", number=0)
    hand.append(like, group, headers=hand.renumber(like, stream="ghost", number=0), partition=0, key=b"ghost:0")
    hand.commit(hand.topics.curate_group("solver"), lambda offset: offset + 1_000)


@tampering("has no outcome and no dead letter")
def j10_number_without_an_answer(hand: Hand) -> None:
    hand.remove(*hand.about(hand.outcomes, hand.dropped))


@tampering("before offset .* are gone")
def j12_oldest_trajectories_gone(hand: Hand) -> None:
    hand.cut_head(hand.trajectories, 5)


@tampering("does not belong to this partition|was curated, but no worker produced it")
def j13_group_on_another_partition(hand: Hand) -> None:
    message = hand.delivery()
    hand.remove(message)
    hand.append(message, partition=(message.partition + 1) % hand.partitions)


# -------------------------------------------------------------------------------------------------------------- curated


@tampering("has more than one curated record")
def c4_curated_record_repeated(hand: Hand) -> None:
    hand.append(hand.about(hand.curated, hand.trained[0].number)[0])


@tampering("has its curated record at another offset than its batch record gives")
def c5_curated_records_reordered(hand: Hand) -> None:
    one = hand.about(hand.curated, hand.trained[0].number)[0]
    found = hand.run.messages[one.topic, one.partition]
    hand.exchange(one, found[found.index(one) - 1])


@tampering("has a log_hash that does not follow from the record before it")
def c8_deadline_later_than_the_bound(hand: Hand) -> None:
    message, curated = hand.curated_record()
    hand.put(message, replace(curated, deadline_version=curated.deadline_version + 10))


@tampering("has a curated record, but no outcome says that it was kept|neither trained nor evicted|discarded")
def c11_dropped_group_curated(hand: Hand) -> None:
    like, number = hand.about(hand.curated, hand.trained[0].number)[0], hand.dropped
    source = hand.about(hand.trajectories, number)[0]
    group = codec.decode(source.value, TrajectoryGroup)
    curated = replace(codec.decode(like.value, CuratedGroup), number=number, group=source.value)
    curated = replace(curated, rewards=tuple(t.reward for t in group.trajectories))
    headers = hand.renumber(like, number=number)
    hand.append(like, curated, key=source.key, headers=headers, partition=source.partition)


# ------------------------------------------------------------------------------------------------------------- outcomes


@tampering("has no outcome and no dead letter")
def o1_outcome_of_a_dropped_group_removed(hand: Hand) -> None:
    hand.remove(hand.outcome(hand.dropped)[0])


@tampering("was both trained and discarded")
def o4_two_verdicts(hand: Hand) -> None:
    hand.forge_outcome(hand.trained[0].number, verdict="dropped", reason="zero_variance")


@tampering("was evicted by the trainer, but no outcome says so", FINISHED)
def o9b_outcome_of_an_eviction_removed(hand: Hand) -> None:
    hand.remove(hand.outcome(hand.evicted[2].number, "train")[0])


@tampering("cannot be used, but has no dead letter")
def o17_outcome_that_is_none(hand: Hand) -> None:
    hand.put(hand.outcome(hand.dropped)[0], value=bytes(40))


# -------------------------------------------------------------------------------------------------------------- batches


tampering.add("b1_batch_removed", "no batch record names version", lambda hand: hand.remove(hand.batch()[0]))


@tampering("was trained more than once")
def b6_group_trained_twice(hand: Hand) -> None:
    message, batch = hand.batch(hand.middle + 1)
    hand.put(message, replace(batch, groups=(hand.trained[0], *batch.groups[1:])))


@tampering("position on .* went back")
def b9_positions_back(hand: Hand) -> None:
    message, batch = hand.batch()
    back = tuple(replace(one, offset=max(one.offset - 20, 0)) for one in batch.positions)
    hand.put(message, replace(batch, positions=back))


@tampering("fingerprint")
def b13_fingerprint_altered(hand: Hand) -> None:
    message, batch = hand.batch()
    hand.put(message, replace(batch, fingerprint={**batch.fingerprint, "torch": "0.0"}))


@tampering("no batch record names version|before offset")
def b17_oldest_batches_gone(hand: Hand) -> None:
    hand.cut_head(hand.batches, 2)


# -------------------------------------------------------------------------------------------------------------- weights


@tampering("is the last one, but is not published|has a checkpoint, but is not published", FINISHED)
def w1_last_version_not_published(hand: Hand) -> None:
    hand.remove(hand.event(max(hand.versions))[0])


def a_delta(hand: Hand) -> tuple[Any, WeightsPublished]:
    return [(m, e) for m, e in hand.decoded(hand.weights, WeightsPublished) if e.kind == "delta"][1]


@tampering("is a delta of epoch|is not the delta that its record says")
def w6_base_of_a_delta_altered(hand: Hand) -> None:
    message, event = a_delta(hand)
    hand.put(message, replace(event, base_version=event.base_version - 1))


@tampering("is not the delta that its record says|has weights_hash")
def w7_object_of_the_next_version(hand: Hand) -> None:
    (message, _), (_, other) = [(m, e) for m, e in hand.decoded(hand.weights, WeightsPublished) if e.kind == "delta"][
        1:3
    ]
    event = codec.decode(message.value, WeightsPublished)
    hand.put(message, replace(event, weights=other.weights))


@tampering("does not exist in the store|file")
def w9_file_beside_an_anchor_removed(hand: Hand) -> None:
    message, event = hand.event(0)
    hand.put(message, replace(event, files=event.files[1:]))


tampering.altered("w17d_claim_taken_away", "names no object", lambda hand: hand.event(0), weights=None)


# ---------------------------------------------------------------------------------------------------------- evaluations


tampering.add("v1_result_removed", "has all answers, but no result", lambda hand: hand.remove(hand.all(hand.evals)[0]))


@tampering("has a result that differs from its answers")
def v3_result_altered(hand: Hand) -> None:
    message, result = hand.decoded(hand.evals, EvalResult)[0]
    hand.put(message, replace(result, avg_at_k=result.avg_at_k + 0.1))


@tampering("was issued, but never answered|some of its answers are missing")
def v5_answer_removed(hand: Hand) -> None:
    hand.remove(hand.all(hand.eval_groups)[0])


# --------------------------------------------------------------------------------------------------------- dead letters


def forge_letter(hand: Hand, number: int, **fields: Any) -> None:
    hand.forge_letter(hand.all(hand.trajectories)[0], number, **{"value": b"", **fields})


@tampering("is a dead letter, but was also trained or discarded")
def d5_dead_letter_of_a_trained_group(hand: Hand) -> None:
    forge_letter(hand, hand.trained[0].number)


@tampering("dead letter|its bytes")
def d6_loss_covered_by_a_dead_letter(hand: Hand) -> None:
    hand.remove(hand.outcome(hand.dropped)[0])
    forge_letter(hand, hand.dropped, value=b"", offset=10**6)


# ---------------------------------------------------------------------------------------------------------------- state


@tampering("never concluded|in flight|never a task", FINISHED)
def s2_next_number_raised(hand: Hand) -> None:
    hand.change_body(b"feed", lambda body: body["next"].update(sums=body["next"]["sums"] + 3))


@tampering("committed offset .* but its snapshot|no committed offset|snapshot")
def s6_position_of_a_snapshot_altered(hand: Hand) -> None:
    message, snapshot = hand.newest(b"curate.")
    [(partition_id, offset)] = snapshot.positions.items()
    hand.put(message, replace(snapshot, positions={partition_id: offset + 50}))


@tampering("checkpoint")
def s7_pointer_removed(hand: Hand) -> None:
    hand.remove(*(m for m in hand.all(hand.state) if m.key == b"checkpoint|solver|4"))


@tampering("checkpoint")
def s10_checkpoints_exchanged(hand: Hand) -> None:
    (one, first), (other, second) = hand.pointer(0), hand.pointer(4)
    hand.put(one, replace(first, checkpoint=second.checkpoint))
    hand.put(other, replace(second, checkpoint=first.checkpoint))


# ---------------------------------------------------------------------------------------------------- committed offsets


@tampering("has no outcome and no dead letter|committed", LIVE)
def k1_curators_commit_forward(hand: Hand) -> None:
    hand.commit(hand.topics.curate_group("solver"), lambda offset: offset + 10)


@tampering("names the snapshot at offset 1 of `state`, but the snapshot .* is newer, and no commit names it")
def k3_commit_that_names_another_snapshot(hand: Hand) -> None:
    hand.commit(hand.topics.curate_group("solver"), lambda offset: offset, metadata='{"snapshot": 1}')


# -------------------------------------------------------------------------------------------------------------- objects


tampering.add("x1_delta_gone", "does not exist in the store", lambda hand: hand.lose(a_delta(hand)[1].weights))


@tampering("has sha256")
def x3_objects_exchanged(hand: Hand) -> None:
    hand.exchange_objects(hand.pointer(0)[1].checkpoint, hand.pointer(4)[1].checkpoint)


# ------------------------------------------------------------------------------------------------------------- compound


@tampering("never concluded|no worker has produced its group")
def y1_number_vanished(hand: Hand) -> None:
    for topic in (hand.tasks, hand.trajectories, hand.outcomes):
        hand.remove(*hand.about(topic, hand.dropped))


@tampering("was trained more than once|neither trained nor evicted|discarded")
def y3_two_for_one(hand: Hand) -> None:
    message, batch = hand.batch(hand.middle + 1)
    gone = batch.groups[0]
    evictions = (*batch.evictions, Eviction(gone, "expired"))
    hand.put(message, replace(batch, groups=(hand.trained[0], *batch.groups[1:]), evictions=evictions))
    hand.forge_outcome(gone.number, verdict="expired", reason="expired", component="train")


@tampering("no outcome|never|no worker has produced", LIVE)
def y5_number_in_flight_vanished(hand: Hand) -> None:
    number = hand.trained[0].number
    for topic in (hand.trajectories, hand.outcomes, hand.curated):
        hand.remove(*hand.about(topic, number))
    message, batch = hand.batch()
    hand.put(message, replace(batch, groups=batch.groups[1:]))


@tampering("no batch record names|are in flight|no outcome says", LIVE)
def y7_rewound_run(hand: Hand) -> None:
    hand.cut_tail(hand.batches, 4)
    hand.cut_tail(hand.outcomes, 4)
    hand.cut_tail(hand.curated, 2)
