"""Ways to break a promise in the log of a run with more in it: replays, a swap, claims, merged deltas, a shadow.

And in that of a run of two policies. All were thought up by somebody who had not seen the audit's code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

from tampering_hand import Hand, with_recipe
from tamperings import FINISHED, LIVE, Catalogue, better

from headrace.infra.kafka.clients import Message
from headrace.infra.weights.delta import encode_delta
from headrace.infra.weights.delta_header import Label
from headrace.infra.weights.tensor_file import read_safetensors
from headrace.infra.weights.tensors import Tensor
from headrace.schemas import codec
from headrace.schemas.records import (
    BatchTrained,
    ClaimCheck,
    CuratedGroup,
    EvalResult,
    Eviction,
    GroupUse,
    Outcome,
    RecipeRevision,
    Task,
    TrajectoryGroup,
    WeightsPublished,
)

OTHER = "solver.other"
"""The shadow."""
rich, pair = Catalogue(), Catalogue()
shadow, verifier = rich.about(OTHER), pair.about("verifier")
RICH, PAIR = rich.all, pair.all


# -------------------------------------------------------------------------------------------------------------- replays


def replayed(hand: Hand) -> tuple[int, GroupUse]:
    """A version in the middle and a replay in its batch, whose first use was trained too."""
    uses = [(v, use) for v, (_, batch) in sorted(hand.versions.items()) for use in batch.groups]
    first = {use.number for _, use in uses if not use.use}
    found = [(v, use) for v, use in uses if use.use == 1 and use.number in first]
    return found[len(found) // 2]


def of_use(hand: Hand, topic: str, number: int, use: int) -> list[Message]:
    return [m for m in hand.about(topic, number) if int(dict(m.headers)["use"]) == use]


def replay_record(hand: Hand) -> tuple[Message, CuratedGroup]:
    _, use = replayed(hand)
    [message] = of_use(hand, hand.curated, use.number, 1)
    return message, codec.decode(message.value, CuratedGroup)


def replay_outcome(hand: Hand) -> tuple[Message, Outcome]:
    _, use = replayed(hand)
    [message] = of_use(hand, hand.outcomes, use.number, 1)
    return message, codec.decode(message.value, Outcome)


def change_batch(hand: Hand, version: int, change: Callable[[tuple[GroupUse, ...]], tuple[GroupUse, ...]]) -> None:
    message, batch = hand.batch(version)
    hand.put(message, replace(batch, groups=change(batch.groups)))


@rich("use 1, was kept, and there is no curated record of it")
def rp1_curated_record_of_a_replay_removed(hand: Hand) -> None:
    hand.remove(replay_record(hand)[0])


@rich("use 1, has more than one curated record")
def rp2_curated_record_of_a_replay_repeated(hand: Hand) -> None:
    hand.append(replay_record(hand)[0])


@rich("use 1, was trained, and no outcome says that it was kept")
def rp3_outcome_of_a_replay_removed(hand: Hand) -> None:
    hand.remove(replay_outcome(hand)[0])


@rich("use 1, was kept more than once")
def rp4_outcome_of_a_replay_repeated(hand: Hand) -> None:
    hand.append(replay_outcome(hand)[0])


@rich("was kept, and there is no curated record of it")
def rp5_first_use_of_a_replay_removed(hand: Hand) -> None:
    _, use = replayed(hand)
    hand.remove(*of_use(hand, hand.curated, use.number, 0))


@rich("the use before it never was kept")
def rp6_a_use_left_out(hand: Hand) -> None:
    version, use = replayed(hand)
    (message, curated), (said, outcome) = replay_record(hand), replay_outcome(hand)
    hand.put(message, replace(curated, use=5), headers=hand.renumber(message, use=5))
    hand.put(said, replace(outcome, use=5), headers=hand.renumber(said, use=5))
    change_batch(hand, version, lambda groups: tuple(replace(g, use=5) if g == use else g for g in groups))


@rich("use 1, was trained more than once")
def rp7_replay_twice_in_a_batch(hand: Hand) -> None:
    version, use = replayed(hand)
    change_batch(hand, version, lambda groups: (use, use, *[g for g in groups if g != use][1:]))


@rich("was trained more than once|was trained, and discarded too")
def rp9_replay_trained_as_a_first_use(hand: Hand) -> None:
    version, use = replayed(hand)
    change_batch(hand, version, lambda groups: tuple(replace(g, use=0) if g == use else g for g in groups))


@rich("use 1, was read by the trainer", FINISHED)
def rp10_replay_taken_out_of_its_batch(hand: Hand) -> None:
    version, use = replayed(hand)
    change_batch(hand, version, lambda groups: tuple(g for g in groups if g != use))


@rich("its deadline is version")
def rp11_deadline_of_a_replay_altered(hand: Hand) -> None:
    message, curated = replay_record(hand)
    hand.put(message, replace(curated, deadline_version=curated.deadline_version + 10))


@rich("its oldest version is .* and that of its first use")
def rp12_oldest_version_of_a_replay_altered(hand: Hand) -> None:
    message, curated = replay_record(hand)
    made = replace(curated, min_version=curated.min_version + 1, deadline_version=curated.deadline_version + 1)
    hand.put(message, made, headers=hand.renumber(message, min_version=made.min_version))


rich.altered("rp13_weight_of_a_replay_altered", "it is a replay of weight 5.0", replay_record, weight=5.0)


@rich("it has its first use .* curated records before it")
def rp14_first_back_altered(hand: Hand) -> None:
    message, curated = replay_record(hand)
    hand.put(message, replace(curated, first_back=curated.first_back + 7))


@rich("it is a replay, and has bytes")
def rp15_replay_with_bytes_of_its_own(hand: Hand) -> None:
    message, curated = replay_record(hand)
    [first] = of_use(hand, hand.curated, curated.number, 0)
    of_first = codec.decode(first.value, CuratedGroup)
    hand.put(message, replace(curated, group=of_first.group, kept=of_first.kept, rewards=of_first.rewards))


rich.altered("rp15b_replay_that_keeps_fewer", "it is a replay, and has bytes", replay_record, kept=(0,))


@rich("is not where the batch that trained it says")
def rp16_replay_on_another_partition(hand: Hand) -> None:
    message, _ = replay_record(hand)
    hand.remove(message)
    hand.append(message, partition=(message.partition + 1) % hand.partitions)


@rich("the use before it never was kept")
def rp17_replay_of_a_dropped_group(hand: Hand) -> None:
    forge_replay(hand, hand.dropped, 1)


def forge_replay(hand: Hand, number: int, use: int) -> None:
    """A replay that is asked for and waits; forged beside those that stand at the end."""
    (message, curated), (said, outcome) = replay_record(hand), replay_outcome(hand)
    key, partition = f"sums:{number}".encode(), number % hand.partitions
    headers = hand.renumber(message, number=number, use=use)
    hand.append(message, replace(curated, number=number, use=use), key=key, headers=headers, partition=partition)
    headers = hand.renumber(said, number=number, use=use)
    hand.append(said, replace(outcome, number=number, use=use), key=key, headers=headers, partition=partition)


@rich("is not where the batch that trained it says|no first use stands before it")
def rp18_replay_before_its_first_use(hand: Hand) -> None:
    message, curated = replay_record(hand)
    [first] = of_use(hand, hand.curated, curated.number, 0)
    hand.exchange(message, first)


@rich("use 1, was evicted by the trainer, and no outcome says so")
def rp20_eviction_of_a_trained_replay(hand: Hand) -> None:
    _, use = replayed(hand)
    message, batch = hand.batch()
    hand.put(message, replace(batch, evictions=(*batch.evictions, Eviction(use, "expired"))))


@rich("use 1, was trained, and discarded too")
def rp22_trained_replay_is_missing(hand: Hand) -> None:
    message, outcome = replay_outcome(hand)
    hand.append(message, replace(outcome, verdict="missing", reason="missing", component="train"))


@rich("recipe revision")
def rp23_revision_of_a_replay_altered(hand: Hand) -> None:
    message, curated = replay_record(hand)
    other = 1 - curated.revision
    hand.put(message, replace(curated, revision=other), headers=hand.renumber(message, revision=other))


@rich("use 1, is dead, and was trained or discarded too")
def rp24_dead_letter_of_a_trained_replay(hand: Hand) -> None:
    message, curated = replay_record(hand)
    hand.forge_letter(message, curated.number, use=1)


@rich("use 1, is not where the batch that trained it says")
def rp26_place_of_a_trained_replay_altered(hand: Hand) -> None:
    version, use = replayed(hand)
    change_batch(
        hand, version, lambda groups: tuple(replace(g, offset=max(g.offset - 1, 0)) if g == use else g for g in groups)
    )


@rich("was trained after its deadline")
def rp27_replay_trained_too_late(hand: Hand) -> None:
    version, use = next((v, g) for v, (_, b) in sorted(hand.versions.items()) for g in b.groups if g.use == 1)
    last = max(hand.versions)
    change_batch(hand, version, lambda groups: tuple(g for g in groups if g != use))
    change_batch(hand, last, lambda groups: (*groups[1:], use))


@rich("asks for a group 1 times")
def rp28_chain_that_asks_for_no_replays(hand: Hand) -> None:
    hand.change_recipes(lambda recipe: recipe["curate"].update(chain=recipe["curate"]["chain"][:2]))


@rich("use 1, was trained, and")
def rp29_verdict_of_a_replay_altered(hand: Hand) -> None:
    message, outcome = replay_outcome(hand)
    hand.put(message, replace(outcome, verdict="dropped", reason="zero_variance"))


# ----------------------------------------------------------------------------------------------------------------- swap


def second(hand: Hand) -> tuple[Message, RecipeRevision]:
    return next((m, r) for m, r in hand.decoded(hand.recipe, RecipeRevision) if r.revision == 1)


def swapped_number(hand: Hand) -> int:
    """A number of revision 1 that was trained."""
    for _, batch in reversed(list(hand.versions.values())):
        for use in batch.groups:
            [message] = of_use(hand, hand.curated, use.number, 0)
            if int(dict(message.headers)["revision"]) == 1 and not use.use:
                return use.number
    raise AssertionError("nothing of revision 1 was trained")


@rich("under recipe revision 1, and no record says what it is|those between are gone")
def sw1_second_revision_removed(hand: Hand) -> None:
    hand.remove(*(m for m, r in hand.decoded(hand.recipe, RecipeRevision) if r.revision == 1))


@rich("recipe revision 1 has two contents")
def sw2_second_revision_repeated_with_another_chain(hand: Hand) -> None:
    message, revision = second(hand)
    text = with_recipe(revision.recipe, lambda recipe: recipe["curate"].update(chain=["validate", "max_staleness"]))
    hand.append(message, replace(revision, recipe=text))


@rich("recipe revision")
def sw4_number_of_another_revision_everywhere(hand: Hand) -> None:
    restamp(hand, swapped_number(hand), hand.outcomes, hand.curated, hand.trajectories, hand.tasks)


def restamp(hand: Hand, number: int, *topics: str) -> None:
    for topic in topics:
        for message in hand.about(topic, number):
            kind: Any = {"outcomes": Outcome, "curated": CuratedGroup, "tasks": Task}.get(
                topic.split(".")[1], TrajectoryGroup
            )
            record = replace(codec.decode(message.value, kind), revision=0)
            hand.put(message, record, headers=hand.renumber(message, revision=0))


@rich("recipe revision 0, and was issued under 1")
def sw5_outcome_of_another_revision(hand: Hand) -> None:
    restamp(hand, swapped_number(hand), hand.outcomes)


@rich("recipe revision 0, and was issued under 1")
def sw6_curated_record_of_another_revision(hand: Hand) -> None:
    restamp(hand, swapped_number(hand), hand.curated)


@rich("none of those that its workers produced")
def sw6b_group_of_another_revision(hand: Hand) -> None:
    restamp(hand, swapped_number(hand), hand.trajectories)


@rich("recipe revision 0, and was issued under 1", LIVE)
def sw7_task_of_another_revision(hand: Hand) -> None:
    number = int(dict(hand.all(hand.tasks)[-1].headers)["number"])
    restamp(hand, number, hand.tasks)


@rich("was trained under recipe revision 0, and the version before under 1", FINISHED)
def sw8_batch_of_an_older_revision_than_before(hand: Hand) -> None:
    message, batch = hand.batch(max(hand.versions))
    hand.put(message, replace(batch, revision=0))


@rich("was trained under recipe revision 0, and the version before under 1")
def sw8b_batch_of_a_later_revision_than_after(hand: Hand) -> None:
    message, batch = hand.batch(1)
    hand.put(message, replace(batch, revision=1))


rich.add("sw9_revision_left_out", "those between are gone", lambda hand: hand.change_revision(1, revision=2))


@rich("revision")
def sw10_revisions_exchanged(hand: Hand) -> None:
    one, other = hand.all(hand.recipe)[0], second(hand)[0]
    hand.exchange(one, other)


@rich("is of recipe revision")
def sw12_begin_of_a_revision_altered(hand: Hand) -> None:
    hand.change_body(b"feed", lambda body: body["revisions"]["sums"].__setitem__(-1, [1, hand.end - 1]))


rich.add("sw14_second_revision_of_another_run", "revision 1", lambda hand: hand.change_revision(1, run_id="another"))


@rich("does not belong on this partition|no worker produced it|says other things")
def sw15_partitions_of_another_number(hand: Hand) -> None:
    hand.change_recipes(lambda recipe: recipe["kafka"].update(partitions=8), only=1)


# --------------------------------------------------------------------------------------------------------------- claims


def claimed(hand: Hand) -> tuple[Message, TrajectoryGroup]:
    """A delivery of a trained group whose bytes are in the store."""
    for use in [g for v in sorted(hand.versions)[len(hand.versions) // 2 :] for g in hand.batch(v)[1].groups]:
        for message in hand.about(hand.trajectories, use.number):
            group = codec.decode(message.value, TrajectoryGroup)
            if group.claim is not None:
                return message, group
    raise AssertionError("no group is in the store")


def put_claim(hand: Hand, number: int, claim: ClaimCheck | None, *topics: str) -> None:
    """Name another object in the deliveries of a number, in its curated records, or in both."""
    change_stubs(hand, number, lambda group: replace(group, claim=claim), *topics)


def change_stubs(hand: Hand, number: int, change: Callable[[TrajectoryGroup], TrajectoryGroup], *topics: str) -> None:
    """Change the records of a group that is in the store: deliveries, and curated records of policy and shadow."""
    for message in hand.about(hand.trajectories, number) if hand.trajectories in topics else ():
        hand.put(message, change(codec.decode(message.value, TrajectoryGroup)))
    curated = (hand.curated, other(hand).curated) if hand.curated in topics else ()
    for message in [message for topic in curated for message in hand.about(topic, number)]:
        record = codec.decode(message.value, CuratedGroup)
        if record.group:
            group = change(codec.decode(record.group, TrajectoryGroup))
            hand.put(message, replace(record, group=codec.encode(group)))


def stored(hand: Hand, data: bytes) -> ClaimCheck:
    """Put an object as a component would."""
    digest = sha256(data).hexdigest()
    claim = ClaimCheck("main", f"forged/{digest}", digest, len(data))
    hand.run.objects[claim.key] = data
    return claim


def behind(hand: Hand, group: TrajectoryGroup) -> TrajectoryGroup:
    assert group.claim is not None
    return codec.decode(hand.run.objects[group.claim.key], TrajectoryGroup)


rich.add("cl1_group_gone_from_the_store", "does not exist in the store", lambda hand: hand.lose(claimed(hand)[1].claim))


rich.add("cl2_group_altered_in_the_store", "sha256", lambda hand: hand.flip(claimed(hand)[1].claim))


@rich("sha256")
def cl3_group_cut_in_the_store(hand: Hand) -> None:
    claim = claimed(hand)[1].claim
    assert claim is not None
    hand.run.objects[claim.key] = hand.run.objects[claim.key][:-9]


@rich("none of those that its workers produced")
def cl5_claim_altered_in_the_delivery(hand: Hand) -> None:
    _, group = claimed(hand)
    put_claim(hand, group.number, stored(hand, codec.encode(better(behind(hand, group)))), hand.trajectories)


@rich("none of those that its workers produced")
def cl6_claim_altered_in_the_curated_record(hand: Hand) -> None:
    _, group = claimed(hand)
    put_claim(hand, group.number, stored(hand, codec.encode(better(behind(hand, group)))), hand.curated)


@rich("the group in the object store does not match")
def cl7_claim_of_another_group(hand: Hand) -> None:
    _, group = claimed(hand)
    others = (codec.decode(m.value, TrajectoryGroup) for m in hand.all(hand.trajectories))
    other = next(g for g in others if g.claim is not None and g.number != group.number)
    put_claim(hand, group.number, other.claim, hand.trajectories, hand.curated)


@rich("says other things of its group")
def cl8_better_group_in_the_store(hand: Hand) -> None:
    _, group = claimed(hand)
    claim = stored(hand, codec.encode(better(behind(hand, group))))
    put_claim(hand, group.number, claim, hand.trajectories, hand.curated)


@rich("the group in the object store does not match")
def cl9_record_of_a_claim_says_other_things(hand: Hand) -> None:
    _, group = claimed(hand)
    change_stubs(hand, group.number, lambda stub: replace(stub, task_id="another"), hand.trajectories, hand.curated)


@rich("the group in the object store does not match")
def cl10_group_of_another_run_in_the_store(hand: Hand) -> None:
    _, group = claimed(hand)
    claim = stored(hand, codec.encode(replace(behind(hand, group), run_id="another")))
    put_claim(hand, group.number, claim, hand.trajectories, hand.curated)


def dropped_claim(hand: Hand) -> tuple[Message, TrajectoryGroup]:
    for number in hand.concluded("dropped"):
        for message in hand.about(hand.trajectories, number):
            group = codec.decode(message.value, TrajectoryGroup)
            if group.claim is not None:
                return message, group
    raise AssertionError("no dropped group is in the store")


@rich("does not exist in the store")
def cl11_dropped_group_gone_from_the_store(hand: Hand) -> None:
    hand.lose(dropped_claim(hand)[1].claim)


@rich("none of those that its workers produced")
def cl13_claimed_group_put_into_its_curated_record(hand: Hand) -> None:
    _, group = claimed(hand)
    for message in hand.about(hand.curated, group.number):
        curated = codec.decode(message.value, CuratedGroup)
        if curated.group:
            hand.put(message, replace(curated, group=codec.encode(behind(hand, group))))


@rich("cannot be used, and no dead letter says so")
def cl14_object_that_is_no_group(hand: Hand) -> None:
    _, group = claimed(hand)
    put_claim(hand, group.number, stored(hand, b"no group"), hand.trajectories, hand.curated)


@rich("the group in the object store does not match")
def cl15_claim_behind_a_claim(hand: Hand) -> None:
    _, group = claimed(hand)
    put_claim(hand, group.number, stored(hand, codec.encode(group)), hand.trajectories, hand.curated)


# -------------------------------------------------------------------------------------------------------- merged deltas


def merged(hand: Hand) -> tuple[Message, WeightsPublished]:
    return next((m, e) for m, e in hand.decoded(hand.weights, WeightsPublished) if e.kind == "merged")


def change_merged(hand: Hand, **fields: Any) -> None:
    message, event = merged(hand)
    hand.put(message, replace(event, **fields))


@rich("merged delta of versions .* does not exist")
def mg1_merged_object_gone(hand: Hand) -> None:
    hand.lose(merged(hand)[1].weights)


@rich("merged delta of versions .* has sha256")
def mg2_merged_object_altered(hand: Hand) -> None:
    hand.flip(merged(hand)[1].weights)


@rich("merged delta of versions .* takes version")
def mg3_result_of_a_merged_delta_altered(hand: Hand) -> None:
    change_merged(hand, weights_hash="0" * 64)


@rich("merged delta of versions .* takes version")
def mg4_base_of_a_merged_delta_altered(hand: Hand) -> None:
    change_merged(hand, base_hash="0" * 64)


@rich("is not what the record says of it")
def mg7_object_of_a_delta_called_merged(hand: Hand) -> None:
    change_merged(hand, weights=hand.event(merged(hand)[1].version)[1].weights)


rich.add("mg8_merged_delta_called_a_delta", "was published twice", lambda hand: change_merged(hand, kind="delta"))


@rich("was published twice|names offset")
def mg9_merged_delta_called_whole(hand: Hand) -> None:
    change_merged(hand, kind="anchor")


@rich("is a delta .* which it names, is not published|takes version|not published")
def mg10_delta_called_merged(hand: Hand) -> None:
    message, event = hand.event(hand.middle)
    hand.put(message, replace(event, kind="merged"))


@rich("takes version .* is not published")
def mg11_merged_delta_before_its_versions(hand: Hand) -> None:
    hand.exchange(merged(hand)[0], hand.event(merged(hand)[1].version)[0])


rich.add("mg12_epoch_of_a_merged_delta_altered", "takes version", lambda hand: change_merged(hand, epoch=1))


@rich("names offset 3 as its anchor's")
def mg13_place_of_the_anchor_of_a_merged_delta_altered(hand: Hand) -> None:
    change_merged(hand, anchor_offset=3)


@rich("is a merged delta .* is marked as the last version")
def mg14_merged_delta_marked_as_the_last(hand: Hand) -> None:
    change_merged(hand, final=True)


rich.add("mg15_claim_of_a_merged_delta_taken_away", "names no object", lambda hand: change_merged(hand, weights=None))


@rich("whose topic is another")
def mg16_merged_delta_of_a_policy_that_there_is_not(hand: Hand) -> None:
    change_merged(hand, policy="another")


@rich("is a delta|does not exist|not published")
def mg18_event_under_a_merged_delta_removed(hand: Hand) -> None:
    hand.remove(hand.event(merged(hand)[1].version - 1)[0])


@rich("merged delta of versions .* weights_hash|gives weights that hash")
def mg20_merged_delta_of_other_contents(hand: Hand) -> None:
    """Hashes and label as they should be, and other changes in it."""
    _, event = merged(hand)
    _, anchor = hand.event(event.base_version)
    assert anchor.weights is not None
    base = read_safetensors(hand.run.objects[anchor.weights.key])
    name = next(iter(base))
    data = bytearray(base[name].data)
    data[0] ^= 1
    other = {**base, name: Tensor(base[name].dtype, base[name].shape, memoryview(bytes(data)))}
    label = Label(event.policy, event.epoch, event.base_version, event.version)
    made = encode_delta(base, other, label, hashes=(event.base_hash, event.weights_hash))
    change_merged(hand, weights=stored(hand, made))


# --------------------------------------------------------------------------------------------------------------- shadow


def other(hand: Hand) -> Hand:
    """The same copy of the run, and the shadow's topics."""
    return hand.of(OTHER)


@shadow("of solver.other was read by the curators, and nothing says what became of it|never concluded|nothing says")
def sh1_outcome_of_a_shadow_removed(o: Hand) -> None:
    o.remove(o.outcome(o.dropped)[0])


@shadow("of solver.other .*was kept, and there is no curated record of it")
def sh2_curated_record_of_a_shadow_removed(o: Hand) -> None:
    o.remove(of_use(o, o.curated, o.trained[0].number, 0)[0])


@shadow("of solver.other .*has more than one curated record")
def sh3_curated_record_of_a_shadow_repeated(o: Hand) -> None:
    o.append(of_use(o, o.curated, o.trained[0].number, 0)[0])


@shadow("of solver.other .*was kept more than once")
def sh4_outcome_of_a_shadow_repeated(o: Hand) -> None:
    o.append(o.outcome(o.trained[0].number)[0])


@shadow("of solver.other .*was trained more than once")
def sh5_group_twice_in_a_batch_of_a_shadow(o: Hand) -> None:
    change_batch(o, o.middle, lambda groups: (*groups[1:], groups[1]))


@shadow("no batch record names version .* of solver.other|of solver.other was trained from weights")
def sh6_batch_of_a_shadow_removed(o: Hand) -> None:
    o.remove(o.batch()[0])


@shadow("of solver.other .*which it names, is not published|of solver.other")
def sh7_event_of_a_shadow_removed(o: Hand) -> None:
    o.remove(o.event(o.middle)[0])


@shadow("of solver.other, announced by .* does not exist")
def sh8_weights_of_a_shadow_gone(o: Hand) -> None:
    o.lose(o.event(o.middle)[1].weights)


@rich("of solver.other has no checkpoint")
def sh9_checkpoint_pointer_of_a_shadow_removed(hand: Hand) -> None:
    hand.remove(*(m for m in hand.all(hand.state) if m.key == b"checkpoint|solver.other|4"))


@rich("of solver.other .* by the checkpoint")
def sh9b_hash_of_a_shadows_pointer_altered(hand: Hand) -> None:
    message, pointer = other(hand).pointer(4)
    hand.put(message, replace(pointer, weights_hash="0" * 64))


shadow.altered("sh10_batch_of_a_shadow_that_names_no_variant", "whose topic is another", Hand.batch, variant="")


shadow.altered(
    "sh10b_event_of_a_shadow_that_names_no_variant", "whose topic is another", lambda o: o.event(o.middle), variant=""
)


@rich("variant|solver.other")
def sh10c_pointer_of_a_shadow_that_names_no_variant(hand: Hand) -> None:
    message, pointer = other(hand).pointer(4)
    hand.put(message, replace(pointer, variant=""))


@rich("solver.other")
def sh11_batch_of_the_policy_among_the_shadows(hand: Hand) -> None:
    o = other(hand)
    message, batch = hand.batch()
    o.append(o.batch()[0], batch, headers=message.headers)


@shadow("none of those that its workers produced|the group in the object store does not match")
def sh12_bytes_of_a_shadows_group_altered(o: Hand) -> None:
    message, curated = o.curated_record()
    group = replace(codec.decode(curated.group, TrajectoryGroup), worker="another")
    o.put(message, replace(curated, group=codec.encode(group)))


@rich("version 0 of solver.other")
def sh13_shadow_that_begins_from_other_weights(hand: Hand) -> None:
    """Its version 0 is the policy's version 1, in its event and its pointer; the chain goes on as it was."""
    o = other(hand)
    message, event = o.event(0)
    put = hand.event(0)[1]
    assert event.weights_hash == put.weights_hash
    o.put(message, replace(event, weights_hash=hand.event(1)[1].weights_hash))


@shadow("of solver.other was discarded by the trainer .* and no batch record says so|window", FINISHED)
def sh14_evictions_of_a_shadow_emptied(o: Hand) -> None:
    for message, batch in o.decoded(o.batches, BatchTrained):
        if batch.evictions:
            o.put(message, replace(batch, evictions=()))


@rich("curate.solver.other has committed offset")
def sh15_commit_of_a_shadows_curator_back(hand: Hand) -> None:
    hand.commit(hand.topics.curate_group(OTHER), lambda offset: offset - 20)


@rich("curate.solver.other restores")
def sh15c_commit_of_a_shadows_curator_names_no_snapshot(hand: Hand) -> None:
    hand.commit(hand.topics.curate_group(OTHER), lambda offset: offset, metadata="")


@rich("dead|letter")
def sh16_dead_letter_about_a_shadows_record(hand: Hand) -> None:
    o = other(hand)
    number = o.trained[0].number
    hand.forge_letter(of_use(o, o.curated, number, 0)[0], number)


@shadow("its deadline is version")
def sh17_deadline_of_a_shadow_altered(o: Hand) -> None:
    message, curated = o.curated_record()
    o.put(message, replace(curated, deadline_version=curated.deadline_version + 10))


@rich("of solver.other was concluded, and never issued")
def sh18_outcome_of_a_shadow_of_a_number_never_issued(hand: Hand) -> None:
    other(hand).forge_outcome(hand.end + 40)


@shadow("of solver.other .*is not where the batch that trained it says")
def sh19_place_of_a_shadows_group_altered(o: Hand) -> None:
    change_batch(o, o.middle, lambda groups: (replace(groups[0], offset=max(groups[0].offset - 1, 0)), *groups[1:]))


@shadow("of solver.other was kept, and there is no curated record of it")
def sh20_dropped_became_kept_in_a_shadow(o: Hand) -> None:
    message, outcome = o.outcome(o.dropped)
    o.put(message, replace(outcome, verdict="kept", reason=""))


@rich("curated.solver.other.* before offset .* are gone")
def sh21_oldest_curated_records_of_a_shadow_gone(hand: Hand) -> None:
    other(hand).cut_head(hand.topics.curated(OTHER), 3)


@shadow("of solver.other has an outcome that says other things of its group")
def sh22_facts_of_a_shadows_outcome_altered(o: Hand) -> None:
    message, outcome = o.outcome(o.dropped)
    o.put(message, replace(outcome, rewards=tuple(reward + 1 for reward in outcome.rewards)))


@shadow("solver.other", LIVE)
def sh23_number_vanished_from_a_shadow(o: Hand) -> None:
    number = o.trained[0].number
    change_batch(o, o.middle, lambda groups: tuple(g for g in groups if g.number != number))
    o.remove(*o.about(o.curated, number), *o.about(o.outcomes, number))


@rich("is of run 'another'")
def sh24_snapshot_of_a_shadows_curator_of_another_run(hand: Hand) -> None:
    message, snapshot = hand.newest(b"curate.solver.other|")
    hand.put(message, replace(snapshot, run_id="another"))


@shadow("version .* of solver.other was trained under|fingerprint")
def sh25_fingerprint_of_a_shadow_altered(o: Hand) -> None:
    message, batch = o.batch()
    o.put(message, replace(batch, fingerprint={**batch.fingerprint, "torch": "0"}))


@shadow("the last version of solver.other is not marked as final|solver.other is the last one", FINISHED)
def sh26_last_version_of_a_shadow_not_marked(o: Hand) -> None:
    message, event = o.event(max(o.versions))
    assert event.final
    o.put(message, replace(event, final=False))


@shadow("the trainer's position on .*curated.solver.other")
def sh27_positions_of_a_shadow_back(o: Hand) -> None:
    message, batch = o.batch()
    o.put(message, replace(batch, positions=tuple(replace(p, offset=1) for p in batch.positions)))


# --------------------------------------------------------------------------------------------------------- two policies


def judge(hand: Hand) -> Hand:
    return hand.of("verifier")


def in_both(hand: Hand) -> int:
    """A number that the verifier trained, and the solver concluded."""
    done = {int(dict(m.headers)["number"]) for m in hand.all(hand.outcomes)}
    return next(g.number for g in judge(hand).trained if g.number in done)


@pair("of verifier .*no worker produced it|of verifier")
def mp1_group_of_one_policy_removed(hand: Hand) -> None:
    j, number = judge(hand), in_both(hand)
    j.remove(*j.about(j.trajectories, number))


@verifier("of verifier")
def mp1b_all_of_a_number_of_one_policy_removed(j: Hand) -> None:
    number = j.dropped if j.concluded("dropped") else j.evicted[2].number
    j.remove(*j.about(j.trajectories, number), *j.about(j.outcomes, number), *j.about(j.curated, number))


@pair("whose topic is another")
def mp2_outcome_of_another_policy(hand: Hand) -> None:
    j, number = judge(hand), in_both(hand)
    message, outcome = j.outcome(number)
    hand.append(hand.outcome(number)[0], outcome, headers=message.headers)


@pair("whose topic is another")
def mp3_group_of_another_policy(hand: Hand) -> None:
    j, number = judge(hand), in_both(hand)
    [message] = hand.about(hand.trajectories, number)
    [there] = j.about(j.trajectories, number)
    j.append(there, value=message.value, headers=message.headers)
    hand.commit(hand.topics.curate_group("verifier"), lambda offset: offset + 1_000)


@pair("policy|none of those|says other things")
def mp4_group_of_another_policy_in_its_value(hand: Hand) -> None:
    j, number = judge(hand), in_both(hand)
    [message] = hand.about(hand.trajectories, number)
    [there] = j.about(j.trajectories, number)
    j.put(there, value=message.value)


@pair("whose topic is another", FINISHED)
def mp5_curated_record_of_another_policy(hand: Hand) -> None:
    j, number = judge(hand), in_both(hand)
    message = j.about(j.curated, number)[0]
    hand.append(hand.all(hand.curated)[0], value=message.value, key=message.key, headers=message.headers)


@pair("whose topic is another")
def mp6_batch_of_another_policy(hand: Hand) -> None:
    message, batch = judge(hand).batch()
    hand.append(hand.batch()[0], batch, headers=message.headers)


@pair("whose topic is another")
def mp7_event_of_another_policy(hand: Hand) -> None:
    j = judge(hand)
    hand.append(hand.event(hand.middle)[0], j.event(j.middle)[1])


@pair("of solver")
def mp8_weights_of_another_policy(hand: Hand) -> None:
    j = judge(hand)
    (message, event), (_, theirs) = hand.event(0), j.event(0)
    hand.put(message, replace(event, weights=theirs.weights, weights_hash=theirs.weights_hash))


@pair("says other things")
def mp11_task_of_another_policys_group(hand: Hand) -> None:
    judge(hand).change_group(in_both(hand), lambda g: replace(g, task_id="another"))


@pair("it is of task .* and another record of .* of another")
def mp11b_task_of_another_policys_group_and_outcome(hand: Hand) -> None:
    j, number = judge(hand), in_both(hand)
    j.change_group(number, lambda g: replace(g, task_id="another"))
    message, outcome = j.outcome(number)
    j.put(message, replace(outcome, task_id="another"))


@pair("of verifier is dead, and was trained or discarded too")
def mp13_dead_letter_of_a_trained_group(hand: Hand) -> None:
    j, number = judge(hand), in_both(hand)
    hand.forge_letter(j.about(j.trajectories, number)[0], number, policy="verifier")


@pair("is dead, and was trained or discarded too|dead letter")
def mp13b_dead_letter_of_the_other_policy(hand: Hand) -> None:
    j, number = judge(hand), in_both(hand)
    hand.forge_letter(j.about(j.trajectories, number)[0], number)


verifier.add("mp14_result_of_one_policy_removed", "evaluation", lambda j: j.remove(j.all(j.evals)[0]), FINISHED)


@pair("evaluation|evals")
def mp14b_result_filed_under_the_other_policy(hand: Hand) -> None:
    j = judge(hand)
    hand.append(hand.all(hand.evals)[0], j.decoded(j.evals, EvalResult)[0][1])


@verifier("evaluation")
def mp14c_result_of_one_policy_altered(j: Hand) -> None:
    message, result = j.decoded(j.evals, EvalResult)[-1]
    j.put(message, replace(result, avg_at_k=2.0))


@verifier("the last version of verifier is not marked as final", FINISHED)
def mp15_last_version_of_one_policy_not_marked(j: Hand) -> None:
    message, event = j.event(max(j.versions))
    j.put(message, replace(event, final=False))


@pair("is on another policy.s eval-groups topic")
def mp16_answer_of_another_policy(hand: Hand) -> None:
    j = judge(hand)
    message = hand.all(hand.eval_groups)[0]
    like = j.all(j.eval_groups)[0]
    j.append(like, value=message.value, key=message.key, headers=message.headers)


@pair("eval|policy")
def mp16b_answers_of_two_policies_exchanged(hand: Hand) -> None:
    j = judge(hand)
    one, two = hand.all(hand.eval_groups)[0], j.all(j.eval_groups)[0]
    hand.put(one, value=two.value)
    j.put(two, value=one.value)


@verifier("eval.sums:.* of verifier was issued, and never answered")
def mp16c_answer_of_one_policy_removed(j: Hand) -> None:
    j.remove(j.all(j.eval_groups)[0])


@pair("curate.verifier has committed offset")
def mp18_commit_of_one_policys_curator_back(hand: Hand) -> None:
    hand.commit(hand.topics.curate_group("verifier"), lambda offset: offset - 10)


@verifier("of verifier")
def mp20_number_vanished_from_one_policy(j: Hand) -> None:
    number = j.trained[0].number
    change_batch(j, j.middle, lambda groups: tuple(g for g in groups if g.number != number))
    for topic in (j.curated, j.outcomes, j.trajectories):
        j.remove(*j.about(topic, number))


@pair("tokenizer.json is not among its files")
def mp21_files_of_another_policy_beside_an_anchor(hand: Hand) -> None:
    j = judge(hand)
    message, event = hand.event(0)
    hand.put(message, replace(event, files=j.event(0)[1].files[:1]))


pair.altered("mp22_batch_that_names_a_variant", "whose topic is another", Hand.batch, variant="other")
