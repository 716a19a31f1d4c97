"""Ways to break a promise in a run's log, and what the audit must say of each.

Those with an id of a letter and a number were thought up by somebody who had not seen the audit's code.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from recorded_run import Runs
from tampering_hand import Hand, with_recipe

from headrace.infra.kafka.clients import Message
from headrace.schemas import codec
from headrace.schemas.records import (
    BatchTrained,
    CuratedGroup,
    EvalResult,
    Eviction,
    GroupUse,
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


@tampering("recipe revision 0 has two contents")
def r8_revision_repeated_with_another_chain(hand: Hand) -> None:
    message, revision = hand.revision()
    text = with_recipe(revision.recipe, lambda recipe: recipe["trainer"].update(learning_rate=1.0))
    hand.append(message, replace(revision, recipe=text))


@tampering("ended", LIVE)
def r2_end_forged(hand: Hand) -> None:
    message, revision = hand.revision()
    hand.append(message, replace(revision, ended="steps"))


@tampering("ended", FINISHED)
def r3_ended_twice(hand: Hand) -> None:
    message, revision = next((m, r) for m, r in hand.decoded(hand.recipe, RecipeRevision) if r.ended)
    hand.append(message, replace(revision, ended="solved"))


@tampering("batch")
def r5_recipe_of_another_batch_size(hand: Hand) -> None:
    hand.change_recipes(lambda recipe: recipe["trainer"].update(groups_per_batch=4))


@tampering("deadline")
def r6_recipe_of_another_staleness_bound(hand: Hand) -> None:
    hand.change_recipes(lambda recipe: recipe["trainer"].update(max_staleness=0))


@tampering("schema")
def r10_schemas_dropped(hand: Hand) -> None:
    for message, revision in hand.decoded(hand.recipe, RecipeRevision):
        hand.put(message, replace(revision, schemas={}))


@tampering("schema")
def r11_schema_of_another_record(hand: Hand) -> None:
    for message, revision in hand.decoded(hand.recipe, RecipeRevision):
        hand.put(message, replace(revision, schemas={**revision.schemas, "Outcome": revision.schemas["Task"]}))


# ---------------------------------------------------------------------------------------------------------------- tasks


@tampering("the feeder does not know that it was issued")
def t2_task_beyond_the_last_number(hand: Hand) -> None:
    like = hand.all(hand.tasks)[-1]
    task = replace(codec.decode(like.value, Task), number=hand.end + 5)
    hand.append(like, task, headers=hand.renumber(like, number=task.number))


@tampering("tasks.sums.*which holds", LIVE)
def t5_tasks_cut_past_what_workers_have_done(hand: Hand) -> None:
    hand.commit(hand.topics.rollout_group("sums"), lambda offset: offset - 5, hand.tasks)
    for place in [place for place in hand.run.messages if place[0] == hand.tasks]:
        committed = next(t for a in reversed(hand.run.asked) for g, t in a.items() if g.topic == hand.tasks).commits
        hand.run.messages[place] = [m for m in hand.run.messages[place] if m.offset >= committed[place].offset + 3]
        hand.run.begins[place] = committed[place].offset + 3
    for asked in hand.run.asked:
        for group, told in asked.items():
            if group.topic == hand.tasks:
                asked[group] = replace(told, begin={p: hand.run.begins[p] for p in told.begin})


@tampering("header|key")
def t6_task_of_another_number_in_its_header(hand: Hand) -> None:
    message = hand.all(hand.tasks)[-1]
    hand.put(message, headers=hand.renumber(message, number=hand.end - 2))


@tampering("ghost")
def t11_task_of_a_stream_that_there_is_not(hand: Hand) -> None:
    like = hand.all(hand.tasks)[-1]
    task = replace(codec.decode(like.value, Task), stream="ghost", number=0)
    hand.append(like, task, key=b"ghost:0", headers=hand.renumber(like, stream="ghost", number=0))


@tampering("is in flight, and neither a task to be played nor a group is there", STOPPED)
def t3_number_that_is_nowhere(hand: Hand) -> None:
    hand.change_body(b"feed", lambda body: body["next"].update(sums=body["next"]["sums"] + 1))


# --------------------------------------------------------------------------------------------------------- trajectories


@tampering("was curated, and no worker produced it")
def j1_trajectory_of_a_trained_group_removed(hand: Hand) -> None:
    hand.remove(*hand.about(hand.trajectories, hand.trained[0].number))


def better(group: TrajectoryGroup) -> TrajectoryGroup:
    first, *others = group.trajectories
    return replace(group, trajectories=(replace(first, reward=first.reward + 1.0), *others))


@tampering("has a curated record whose group is none of those that its workers produced")
def j2_trajectory_altered_afterwards(hand: Hand) -> None:
    for message in hand.about(hand.trajectories, hand.trained[0].number):
        hand.put(message, better(codec.decode(message.value, TrajectoryGroup)))


@tampering("has an outcome that says other things of its group")
def j3_trajectory_of_a_dropped_group_altered(hand: Hand) -> None:
    for message in hand.about(hand.trajectories, hand.dropped):
        hand.put(message, better(codec.decode(message.value, TrajectoryGroup)))


@tampering("its headers name .*, its value")
def j4_values_of_two_groups_exchanged(hand: Hand) -> None:
    one = hand.delivery()
    other = next(m for m in hand.all(hand.trajectories) if m.partition == one.partition and m.key != one.key)
    hand.exchange(one, other, values=True)


@tampering("its headers name .*, its value")
def j5_trajectory_of_another_run_in_its_value(hand: Hand) -> None:
    message = hand.delivery()
    hand.put(message, replace(codec.decode(message.value, TrajectoryGroup), run_id="another"))


def of_version(version: int) -> Callable[[TrajectoryGroup], TrajectoryGroup]:
    def change(group: TrajectoryGroup) -> TrajectoryGroup:
        first, *others = group.trajectories
        sequence, *more = first.sequences
        runs = sequence.version_runs.copy()
        runs[-2] = version
        sequence = replace(sequence, version_runs=runs)
        return replace(group, trajectories=(replace(first, sequences=(sequence, *more)), *others))

    return change


@tampering("was trained into a version that is not newer than its newest token")
def j6_tokens_of_a_version_that_never_was(hand: Hand) -> None:
    version = hand.middle + 50
    hand.change_group(hand.trained[0].number, of_version(version), max_version=version)


@tampering("version")
def j6b_tokens_of_another_version_than_its_headers_say(hand: Hand) -> None:
    hand.change_group(hand.trained[0].number, of_version(hand.middle + 50))


@tampering("never issued")
def j9_group_that_was_never_issued(hand: Hand) -> None:
    like, number = hand.about(hand.trajectories, hand.dropped)[0], hand.end + 7
    group = replace(codec.decode(like.value, TrajectoryGroup), number=number)
    headers = hand.renumber(like, number=number)
    made = hand.append(like, group, headers=headers, partition=number % hand.partitions, key=f"sums:{number}".encode())
    hand.commit(hand.topics.curate_group("solver"), lambda offset: offset + 1_000)
    assert made


@tampering("never issued")
def j9c_group_of_a_stream_that_there_is_not(hand: Hand) -> None:
    like = hand.about(hand.trajectories, hand.dropped)[0]
    group = replace(codec.decode(like.value, TrajectoryGroup), stream="ghost", number=0)
    hand.append(like, group, headers=hand.renumber(like, stream="ghost", number=0), partition=0, key=b"ghost:0")
    hand.commit(hand.topics.curate_group("solver"), lambda offset: offset + 1_000)


@tampering("nothing says what became of it")
def j10_number_without_an_answer(hand: Hand) -> None:
    hand.remove(*hand.about(hand.outcomes, hand.dropped))


@tampering("trajectories.solver.*which holds|has lost|no worker produced it")
def j11_trajectories_cut_below_the_curators_commit(hand: Hand) -> None:
    hand.cut_tail(hand.trajectories, 20)


@tampering("before offset .* are gone")
def j12_oldest_trajectories_gone(hand: Hand) -> None:
    hand.cut_head(hand.trajectories, 5)


@tampering("does not belong on this partition|was curated, and no worker produced it")
def j13_group_on_another_partition(hand: Hand) -> None:
    message = hand.delivery()
    hand.remove(message)
    hand.append(message, partition=(message.partition + 1) % hand.partitions)


def fewer(group: TrajectoryGroup) -> TrajectoryGroup:
    return replace(group, trajectories=group.trajectories[1:])


@tampering("has an outcome that says other things of its group")
def j15_episode_that_disappeared(hand: Hand) -> None:
    number = hand.trained[0].number
    hand.change_group(number, fewer)
    for message in hand.about(hand.curated, number):
        curated = codec.decode(message.value, CuratedGroup)
        kept = tuple(index - 1 for index in curated.kept if index)
        hand.put(message, replace(curated, kept=kept, rewards=curated.rewards[1:]))


def longer_run(group: TrajectoryGroup) -> TrajectoryGroup:
    first, *others = group.trajectories
    sequence, *more = first.sequences
    runs = sequence.version_runs.copy()
    runs[-1] += 1
    sequence = replace(sequence, version_runs=runs)
    return replace(group, trajectories=(replace(first, sequences=(sequence, *more)), *others))


@tampering("version")
def j17_versions_of_more_tokens_than_there_are(hand: Hand) -> None:
    hand.change_group(hand.trained[0].number, longer_run)


# -------------------------------------------------------------------------------------------------------------- curated


@tampering("was kept, and there is no curated record of it")
def c1_curated_record_of_a_trained_group_removed(hand: Hand) -> None:
    hand.remove(*hand.about(hand.curated, hand.trained[0].number))


def waiting(hand: Hand) -> int:
    """Return the newest number that was kept and not trained; where the run was stopped with none, there is no case."""
    kept = set(hand.concluded("kept")) - {g.number for _, b in hand.versions.values() for g in b.groups}
    if not kept:
        pytest.skip("no group waits in this record")
    return max(kept)


@tampering("was kept, and there is no curated record of it", LIVE)
def c3_curated_record_of_a_waiting_group_removed(hand: Hand) -> None:
    hand.remove(*hand.about(hand.curated, waiting(hand)))


@tampering("has more than one curated record")
def c4_curated_record_repeated(hand: Hand) -> None:
    hand.append(hand.about(hand.curated, hand.trained[0].number)[0])


@tampering("is not where the batch that trained it says")
def c5_curated_records_reordered(hand: Hand) -> None:
    one = hand.about(hand.curated, hand.trained[0].number)[0]
    found = hand.run.messages[one.topic, one.partition]
    hand.exchange(one, found[found.index(one) - 1])


@tampering("it leaves out 1 trajectories, and outcomes say so of 0")
def c6_curated_record_keeps_fewer(hand: Hand) -> None:
    message, curated = hand.curated_record()
    hand.put(message, replace(curated, kept=curated.kept[:-1]))


@tampering("it keeps")
def c6b_curated_record_keeps_what_is_not_there(hand: Hand) -> None:
    message, curated = hand.curated_record()
    hand.put(message, replace(curated, kept=(*curated.kept, 99)))


@tampering("its deadline is version")
def c8_deadline_later_than_the_bound(hand: Hand) -> None:
    message, curated = hand.curated_record()
    hand.put(message, replace(curated, deadline_version=curated.deadline_version + 10))


@tampering("its tokens are of versions")
def c9_oldest_version_altered(hand: Hand) -> None:
    message, curated = hand.curated_record()
    made = replace(curated, min_version=curated.min_version + 1, deadline_version=curated.deadline_version + 1)
    hand.put(message, made, headers=hand.renumber(message, min_version=made.min_version, max_version=made.min_version))


@tampering("has a curated record whose group is none of those that its workers produced")
def c10_bytes_of_a_curated_group_altered(hand: Hand) -> None:
    message, curated = hand.curated_record()
    group = better(codec.decode(curated.group, TrajectoryGroup))
    hand.put(message, replace(curated, group=codec.encode(group)))


@tampering("has a curated record, and no outcome says that it was kept|neither trained nor evicted|discarded")
def c11_dropped_group_curated(hand: Hand) -> None:
    like, number = hand.about(hand.curated, hand.trained[0].number)[0], hand.dropped
    source = hand.about(hand.trajectories, number)[0]
    group = codec.decode(source.value, TrajectoryGroup)
    curated = replace(codec.decode(like.value, CuratedGroup), number=number, group=source.value)
    curated = replace(curated, rewards=tuple(t.reward for t in group.trajectories))
    headers = hand.renumber(like, number=number)
    hand.append(like, curated, key=source.key, headers=headers, partition=source.partition)


@tampering("its headers say use")
def c12_use_in_the_header_altered(hand: Hand) -> None:
    message = hand.about(hand.curated, hand.trained[0].number)[0]
    hand.put(message, headers=hand.renumber(message, use=1))


@tampering("was kept, and there is no curated record of it")
def c14_newest_curated_records_gone(hand: Hand) -> None:
    hand.cut_tail(hand.curated, 3)


# ------------------------------------------------------------------------------------------------------------- outcomes


@tampering("nothing says what became of it")
def o1_outcome_of_a_dropped_group_removed(hand: Hand) -> None:
    hand.remove(hand.outcome(hand.dropped)[0])


@tampering("was trained, and no outcome says that it was kept")
def o2_outcome_of_a_trained_group_removed(hand: Hand) -> None:
    hand.remove(hand.outcome(hand.trained[0].number)[0])


@tampering("was discarded more than once")
def o3_outcome_repeated(hand: Hand) -> None:
    hand.append(hand.outcome(hand.dropped)[0])


@tampering("was kept more than once")
def o3c_outcome_of_a_kept_group_repeated(hand: Hand) -> None:
    hand.append(hand.outcome(hand.trained[0].number)[0])


@tampering("was trained, and discarded too")
def o4_two_verdicts(hand: Hand) -> None:
    hand.forge_outcome(hand.trained[0].number, verdict="dropped", reason="zero_variance")


@tampering("was kept, and there is no curated record of it")
def o5_dropped_became_kept(hand: Hand) -> None:
    message, outcome = hand.outcome(hand.dropped)
    hand.put(message, replace(outcome, verdict="kept", reason=""))


@tampering("was trained, and no outcome says that it was kept")
def o5b_kept_became_dropped(hand: Hand) -> None:
    message, outcome = hand.outcome(hand.trained[0].number)
    hand.put(message, replace(outcome, verdict="dropped", reason="zero_variance"))


tampering.altered("o6_reason_taken_away", "without a reason", lambda hand: hand.outcome(hand.dropped), reason="")


@tampering("was discarded more than once")
def o7_outcome_of_another_number(hand: Hand) -> None:
    message, outcome = hand.outcome(hand.dropped)
    other = next(n for n in hand.concluded("dropped") if n != hand.dropped)
    hand.put(message, replace(outcome, number=other), headers=hand.renumber(message, number=other))


@tampering("no batch record says so|no worker produced it", STOPPED)
def o8_end_of_the_run_before_it(hand: Hand) -> None:
    hand.forge_outcome(hand.end - 1, verdict="run_end", reason="run_end", component="train")


@tampering("no batch record says so", STOPPED)
def o9_expired_without_an_eviction(hand: Hand) -> None:
    hand.forge_outcome(waiting(hand), verdict="expired", reason="expired", component="train")


@tampering("was evicted by the trainer, and no outcome says so", FINISHED)
def o9b_outcome_of_an_eviction_removed(hand: Hand) -> None:
    hand.remove(hand.outcome(hand.evicted[2].number, "train")[0])


@tampering("was evicted by the trainer as", FINISHED)
def o10_verdict_unlike_that_of_the_eviction(hand: Hand) -> None:
    message, outcome = hand.outcome(hand.evicted[2].number, "train")
    hand.put(message, replace(outcome, verdict="surplus", reason="surplus"))


@tampering("has an outcome that says other things of its group")
def o12_facts_of_an_outcome_altered(hand: Hand) -> None:
    message, outcome = hand.outcome(hand.dropped)
    hand.put(message, replace(outcome, rewards=tuple(reward + 1 for reward in outcome.rewards)))


@tampering("nothing says what became of it|the use before it never was kept|never concluded")
def o13_outcome_of_another_use(hand: Hand) -> None:
    message, outcome = hand.outcome(hand.dropped)
    hand.put(message, replace(outcome, use=1), headers=hand.renumber(message, use=1))


@tampering("was produced, and nothing says|no outcome says")
def o14_newest_outcomes_gone(hand: Hand) -> None:
    hand.cut_tail(hand.outcomes, 20)


@tampering("another run|another policy|nothing says what became of it")
def o15_outcome_of_another_run(hand: Hand) -> None:
    message, outcome = hand.outcome(hand.dropped)
    hand.put(message, replace(outcome, run_id="another"))


@tampering("cannot be used, and no dead letter says so")
def o17_outcome_that_is_none(hand: Hand) -> None:
    hand.put(hand.outcome(hand.dropped)[0], value=bytes(40))


# -------------------------------------------------------------------------------------------------------------- batches


tampering.add("b1_batch_removed", "no batch record names version", lambda hand: hand.remove(hand.batch()[0]))


@tampering("no batch record names version")
def b1b_version_removed_and_the_chain_mended(hand: Hand) -> None:
    hand.remove(hand.batch()[0], hand.event(hand.middle)[0])
    message, after = hand.batch(hand.middle + 1)
    hand.put(message, replace(after, base_hash=hand.batch(hand.middle - 1)[1].weights_hash))


tampering.add("b2_batch_repeated", "was trained twice", lambda hand: hand.append(hand.batch()[0]))


@tampering("was evicted by the trainer more than once", FINISHED)
def b2c_evictions_repeated(hand: Hand) -> None:
    message, batch, _ = hand.evicted
    hand.append(message, replace(batch, version=-1, groups=(), positions=()))


@tampering("was trained after version")
def b3_batches_reordered(hand: Hand) -> None:
    hand.exchange(hand.batch()[0], hand.batch(hand.middle + 1)[0])


@tampering(
    "neither trained nor evicted|was trained, and discarded too|evicted and trained|no batch record says so", FINISHED
)
def b5_group_of_a_batch_exchanged_for_an_evicted_one(hand: Hand) -> None:
    where, record, group = hand.evicted
    rest = tuple(e for e in record.evictions if e.group != group)
    hand.put(where, replace(record, evictions=rest))
    message, batch = next((m, b) for m, b in hand.decoded(hand.batches, BatchTrained) if b.version == hand.middle)
    hand.put(message, replace(batch, groups=(group, *batch.groups[1:])))


@tampering("was trained more than once")
def b6_group_trained_twice(hand: Hand) -> None:
    message, batch = hand.batch(hand.middle + 1)
    hand.put(message, replace(batch, groups=(hand.trained[0], *batch.groups[1:])))


tampering.altered("b7_base_of_a_batch_altered", "was trained from weights", Hand.batch, base_hash="0" * 64)


@tampering("is labelled|has weights_hash")
def b7c_weights_of_another_hash_everywhere(hand: Hand) -> None:
    made = "1" * 64
    message, batch = hand.batch()
    hand.put(message, replace(batch, weights_hash=made))
    message, after = hand.batch(hand.middle + 1)
    hand.put(message, replace(after, base_hash=made))
    for message, event in hand.decoded(hand.weights, WeightsPublished):
        if event.version == hand.middle:
            hand.put(message, replace(event, weights_hash=made))
        elif event.base_version == hand.middle:
            hand.put(message, replace(event, base_hash=made))


@tampering("no batch record says so", FINISHED)
def b8_evictions_emptied(hand: Hand) -> None:
    message, batch, _ = hand.evicted
    hand.put(message, replace(batch, evictions=()))


@tampering("position on .* went back")
def b9_positions_back(hand: Hand) -> None:
    message, batch = hand.batch()
    back = tuple(replace(one, offset=max(one.offset - 20, 0)) for one in batch.positions)
    hand.put(message, replace(batch, positions=back))


@tampering("position")
def b9b_positions_past_the_end(hand: Hand) -> None:
    message, batch = hand.batch(max(hand.versions))
    far = tuple(replace(one, offset=one.offset + 10_000) for one in batch.positions)
    hand.put(message, replace(batch, positions=far))


@tampering("which its trainer had not read")
def b9d_group_trained_before_it_was_read(hand: Hand) -> None:
    message, batch = hand.batch()
    group = batch.groups[0]
    positions = (replace(one, offset=min(one.offset, group.offset)) for one in batch.positions)
    hand.put(message, replace(batch, positions=tuple(positions)))


@tampering("was trained after its deadline|into a version that is not newer")
def b11_group_trained_too_late(hand: Hand) -> None:
    early, late = min(hand.versions), max(hand.versions)
    message, batch = hand.batch(late)
    other, first = hand.batch(early)
    hand.put(message, replace(batch, groups=(first.groups[0], *batch.groups[1:])))
    hand.put(other, replace(first, groups=(batch.groups[0], *first.groups[1:])))


tampering.altered("b12b_epoch_of_a_batch_altered", "epoch", Hand.batch, epoch=lambda batch: batch.epoch + 1)


@tampering("fingerprint")
def b13_fingerprint_altered(hand: Hand) -> None:
    message, batch = hand.batch()
    hand.put(message, replace(batch, fingerprint={**batch.fingerprint, "torch": "0.0"}))


tampering.altered("b14_batch_of_an_unknown_revision", "revision 99", Hand.batch, revision=99)


@tampering("is not where the batch that trained it says")
def b15_place_of_a_trained_group_altered(hand: Hand) -> None:
    message, batch = hand.batch()
    one, other, *rest = batch.groups
    swapped = replace(one, partition=other.partition, offset=other.offset)
    hand.put(message, replace(batch, groups=(swapped, other, *rest)))


@tampering("no batch record names version|are in flight")
def b16_newest_batches_gone(hand: Hand) -> None:
    hand.cut_tail(hand.batches, 3)


@tampering("no batch record names version|before offset")
def b17_oldest_batches_gone(hand: Hand) -> None:
    hand.cut_head(hand.batches, 2)


tampering.altered("b18_batch_that_makes_no_version", "no batch record names version", Hand.batch, version=-1)


tampering.altered("b19_batch_of_another_run", "no batch record names version", Hand.batch, run_id="another")


@tampering("was concluded, and never issued")
def b20_group_that_was_never_issued_is_trained(hand: Hand) -> None:
    message, batch = hand.batch()
    hand.put(message, replace(batch, groups=(*batch.groups, GroupUse("sums", hand.end + 1, 0, -1, -1))))


# -------------------------------------------------------------------------------------------------------------- weights


@tampering("is the last one and is not published|has a checkpoint and is not published", FINISHED)
def w1_last_version_not_published(hand: Hand) -> None:
    hand.remove(hand.event(max(hand.versions))[0])


tampering.altered(
    "w1b_last_version_not_marked_as_such", "final", lambda hand: hand.event(max(hand.versions)), FINISHED, final=False
)


@tampering("is a delta of epoch|has a checkpoint and is not published")
def w2_version_removed_on_which_the_next_one_stands(hand: Hand) -> None:
    events = {e.version: (m, e) for m, e in hand.decoded(hand.weights, WeightsPublished)}
    version = next(e.base_version for _, e in events.values() if e.base_version > 0)
    hand.remove(events[version][0])


tampering.add("w3_event_repeated", "was published twice", lambda hand: hand.append(hand.event(0)[0]))


@tampering("was published after version|is a delta")
def w4_events_reordered(hand: Hand) -> None:
    first, second, *_ = [m for m, e in hand.decoded(hand.weights, WeightsPublished) if e.version > 0]
    hand.exchange(first, second)


def a_delta(hand: Hand) -> tuple[Any, WeightsPublished]:
    return [(m, e) for m, e in hand.decoded(hand.weights, WeightsPublished) if e.kind == "delta"][1]


tampering.altered(
    "w5_delta_called_whole", "whole weights of version|is not published|is a delta", a_delta, kind="whole"
)


@tampering("is a delta of epoch|is labelled")
def w6_base_of_a_delta_altered(hand: Hand) -> None:
    message, event = a_delta(hand)
    hand.put(message, replace(event, base_version=event.base_version - 1))


@tampering("is labelled|has weights_hash")
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


tampering.altered(
    "w11_place_of_the_anchor_altered", "anchor", a_delta, anchor_offset=lambda event: event.anchor_offset + 1
)


@tampering("merged delta")
def w12_merged_delta_of_a_version_that_is_not_there(hand: Hand) -> None:
    message, event = a_delta(hand)
    hand.append(message, replace(event, kind="merged", version=max(hand.versions) + 3, base_version=0))


tampering.altered("w14_epoch_of_an_event_altered", "epoch", a_delta, epoch=lambda event: event.epoch + 1)


@tampering("no batch record names version", FINISHED)
def w16_version_without_a_batch(hand: Hand) -> None:
    message, event = hand.event(0)
    hand.append(message, replace(event, version=max(hand.versions) + 1))


@tampering("has sha256|names no object")
def w17_claim_altered(hand: Hand) -> None:
    message, event = hand.event(0)
    assert event.weights is not None
    hand.put(message, replace(event, weights=replace(event.weights, sha256="0" * 64)))


tampering.altered("w17d_claim_taken_away", "names no object", lambda hand: hand.event(0), weights=None)


# ---------------------------------------------------------------------------------------------------------- evaluations


tampering.add("v1_result_removed", "is answered, and has no result", lambda hand: hand.remove(hand.all(hand.evals)[0]))


@tampering("has more than one result")
def v2_result_repeated(hand: Hand) -> None:
    message, result = hand.decoded(hand.evals, EvalResult)[0]
    hand.append(message, replace(result, avg_at_k=1.0))


@tampering("has another result than its answers give")
def v3_result_altered(hand: Hand) -> None:
    message, result = hand.decoded(hand.evals, EvalResult)[0]
    hand.put(message, replace(result, avg_at_k=result.avg_at_k + 0.1))


@tampering("has a result, and not all its answers are there", FINISHED, STOPPED)
def v4_result_of_nothing(hand: Hand) -> None:
    message, result = hand.decoded(hand.evals, EvalResult)[0]
    hand.append(message, replace(result, version=max(hand.versions) + 5))


@tampering("was issued, and never answered|not all its answers are there")
def v5_answer_removed(hand: Hand) -> None:
    hand.remove(hand.all(hand.eval_groups)[0])


@tampering("has another result than its answers give")
def v6_answer_altered(hand: Hand) -> None:
    message, group = hand.decoded(hand.eval_groups, TrajectoryGroup)[0]
    first, *others = group.trajectories
    made = replace(group, trajectories=(replace(first, reward=1.0 - first.reward), *others))
    hand.put(message, made)


@tampering("was answered, and never issued")
def v8_answer_that_was_never_issued(hand: Hand) -> None:
    message, group = hand.decoded(hand.eval_groups, TrajectoryGroup)[0]
    hand.append(message, replace(group, number=9_000), headers=hand.renumber(message, number=9_000))


@tampering("never issued|feeder does not know")
def v9_evaluation_that_the_feeder_does_not_know(hand: Hand) -> None:
    message = hand.all(hand.eval_tasks)[0]
    hand.append(message, headers=hand.renumber(message, number=9_000))


@tampering("never issued|evaluation")
def v10_answer_among_training_groups(hand: Hand) -> None:
    message = hand.all(hand.eval_groups)[0]
    hand.append(message, topic=hand.trajectories)
    hand.commit(hand.topics.curate_group("solver"), lambda offset: offset + 1_000)


@tampering("its headers name .*, its value")
def v12_values_of_two_answers_exchanged(hand: Hand) -> None:
    one, other, *_ = [m for m in hand.all(hand.eval_groups) if m.partition == 0]
    hand.exchange(one, other, values=True)


# --------------------------------------------------------------------------------------------------------- dead letters


def forge_letter(hand: Hand, number: int, **fields: Any) -> None:
    hand.forge_letter(hand.all(hand.trajectories)[0], number, **{"value": b"", **fields})


@tampering("is dead, and was trained or discarded too")
def d5_dead_letter_of_a_trained_group(hand: Hand) -> None:
    forge_letter(hand, hand.trained[0].number)


@tampering("was concluded, and never issued")
def d5c_dead_letter_of_a_number_that_was_never_issued(hand: Hand) -> None:
    forge_letter(hand, hand.end + 3)


@tampering("dead letter|its bytes")
def d6_loss_covered_by_a_dead_letter(hand: Hand) -> None:
    hand.remove(hand.outcome(hand.dropped)[0])
    forge_letter(hand, hand.dropped, value=b"", offset=10**6)


# ---------------------------------------------------------------------------------------------------------------- state


@tampering("never issued|does not know", FINISHED, STOPPED)
def s1_next_number_lowered(hand: Hand) -> None:
    hand.change_body(b"feed", lambda body: body["next"].update(sums=body["next"]["sums"] - 3))


@tampering("never concluded|in flight|never a task", FINISHED)
def s2_next_number_raised(hand: Hand) -> None:
    hand.change_body(b"feed", lambda body: body["next"].update(sums=body["next"]["sums"] + 3))


@tampering("never issued|does not know")
def s3_feeders_snapshots_removed(hand: Hand) -> None:
    hand.remove(*(m for m in hand.all(hand.state) if m.key == b"feed"))


@tampering("snapshot")
def s4_old_snapshot_of_a_curator_again(hand: Hand) -> None:
    found = [m for m in hand.all(hand.state) if m.key.startswith(b"curate.")]
    hand.append(next(m for m in found if m.key == found[-1].key))


@tampering("committed offset .* and its snapshot|where it has been|snapshot")
def s6_position_of_a_snapshot_altered(hand: Hand) -> None:
    message, snapshot = hand.newest(b"curate.")
    [(place, offset)] = snapshot.positions.items()
    hand.put(message, replace(snapshot, positions={place: offset + 50}))


@tampering("checkpoint")
def s7_pointer_removed(hand: Hand) -> None:
    hand.remove(*(m for m in hand.all(hand.state) if m.key == b"checkpoint|solver|4"))


@tampering("checkpoint")
def s7c_first_pointer_removed(hand: Hand) -> None:
    hand.remove(*(m for m in hand.all(hand.state) if m.key == b"checkpoint|solver|0"))


tampering.altered(
    "s8_hash_of_a_pointer_altered", "by the checkpoint", lambda hand: hand.pointer(4), weights_hash="0" * 64
)


tampering.altered("s8d_version_of_a_pointer_altered", "checkpoint", lambda hand: hand.pointer(4), version=5)


@tampering("checkpoint")
def s10_checkpoints_exchanged(hand: Hand) -> None:
    (one, first), (other, second) = hand.pointer(0), hand.pointer(4)
    hand.put(one, replace(first, checkpoint=second.checkpoint))
    hand.put(other, replace(second, checkpoint=first.checkpoint))


tampering.altered("s16_snapshot_of_another_run", "snapshot", lambda hand: hand.newest(b"curate."), run_id="another")


@tampering("was concluded, and never issued")
def s17_body_of_the_feeders_snapshot_altered(hand: Hand) -> None:
    message, snapshot = hand.newest(b"feed")
    hand.put(message, replace(snapshot, body=b"{}"))


# ---------------------------------------------------------------------------------------------------- committed offsets


@tampering("nothing says what became of it|committed", LIVE)
def k1_curators_commit_forward(hand: Hand) -> None:
    hand.commit(hand.topics.curate_group("solver"), lambda offset: offset + 10)


@tampering("and its snapshot .* is of")
def k2_curators_commit_back(hand: Hand) -> None:
    hand.commit(hand.topics.curate_group("solver"), lambda offset: offset - 100)


@tampering("restores .* from snapshot")
def k3_commit_that_names_another_snapshot(hand: Hand) -> None:
    hand.commit(hand.topics.curate_group("solver"), lambda offset: offset, metadata='{"snapshot": 1}')


@tampering("has committed offset")
def k5_commit_past_the_end(hand: Hand) -> None:
    hand.commit(hand.topics.rollout_group("sums"), lambda offset: offset + 10_000, hand.tasks)


# -------------------------------------------------------------------------------------------------------------- objects


tampering.add("x1_delta_gone", "does not exist in the store", lambda hand: hand.lose(a_delta(hand)[1].weights))


@tampering("does not exist in the store")
def x1c_checkpoint_gone(hand: Hand) -> None:
    hand.lose(hand.pointer(4)[1].checkpoint)


tampering.add("x2_delta_altered", "has sha256", lambda hand: hand.flip(a_delta(hand)[1].weights))


@tampering("has sha256")
def x3_objects_exchanged(hand: Hand) -> None:
    one, other = hand.pointer(0)[1].checkpoint, hand.pointer(4)[1].checkpoint
    assert one is not None
    assert other is not None
    objects = hand.run.objects
    objects[one.key], objects[other.key] = objects[other.key], objects[one.key]


tampering.add("x4_checkpoint_altered", "has sha256", lambda hand: hand.flip(hand.pointer(4)[1].checkpoint))


# ------------------------------------------------------------------------------------------------------------- compound


@tampering("never concluded|neither a task to be played nor a group")
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


@tampering("nothing|never|lost|neither", LIVE)
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
