"""Ways to break a promise in the log of a run with more in it: replays, a swap, claims, merged deltas, a shadow.

And in that of a run of two policies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

from tampering_hand import Hand
from tamperings import FINISHED, LIVE, Catalogue

from headrace.infra.kafka.clients import Message
from headrace.infra.weights.delta import encode_delta
from headrace.infra.weights.delta_header import Label
from headrace.infra.weights.tensor_file import read_safetensors
from headrace.infra.weights.tensors import Tensor
from headrace.schemas import codec
from headrace.schemas.records import (
    ClaimCheck,
    CuratedGroup,
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


@rich("the use before it never was kept")
def rp6_a_use_left_out(hand: Hand) -> None:
    version, use = replayed(hand)
    (message, curated), (said, outcome) = replay_record(hand), replay_outcome(hand)
    hand.put(message, replace(curated, use=5), headers=hand.renumber(message, use=5))
    hand.put(said, replace(outcome, use=5), headers=hand.renumber(said, use=5))
    change_batch(hand, version, lambda groups: tuple(replace(g, use=5) if g == use else g for g in groups))


@rich("it has its first use .* curated records before it")
def rp14_first_back_altered(hand: Hand) -> None:
    message, curated = replay_record(hand)
    hand.put(message, replace(curated, first_back=curated.first_back + 7))


@rich("is not where the batch that trained it says|no first use stands before it")
def rp18_replay_before_its_first_use(hand: Hand) -> None:
    message, curated = replay_record(hand)
    [first] = of_use(hand, hand.curated, curated.number, 0)
    hand.exchange(message, first)


@rich("asks for a group 1 times")
def rp28_chain_that_asks_for_no_replays(hand: Hand) -> None:
    hand.change_recipes(lambda recipe: recipe["curate"].update(chain=recipe["curate"]["chain"][:2]))


# ----------------------------------------------------------------------------------------------------------------- swap


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


@rich("is of recipe revision")
def sw12_begin_of_a_revision_altered(hand: Hand) -> None:
    hand.change_body(b"feed", lambda body: body["revisions"]["sums"].__setitem__(-1, [1, hand.end - 1]))


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


@rich("behind its claim check says other things of itself")
def cl7_claim_of_another_group(hand: Hand) -> None:
    _, group = claimed(hand)
    others = (codec.decode(m.value, TrajectoryGroup) for m in hand.all(hand.trajectories))
    other = next(g for g in others if g.claim is not None and g.number != group.number)
    put_claim(hand, group.number, other.claim, hand.trajectories, hand.curated)


@rich("behind its claim check says other things of itself")
def cl10_group_of_another_run_in_the_store(hand: Hand) -> None:
    _, group = claimed(hand)
    claim = stored(hand, codec.encode(replace(behind(hand, group), run_id="another")))
    put_claim(hand, group.number, claim, hand.trajectories, hand.curated)


@rich("cannot be used, and no dead letter says so")
def cl14_object_that_is_no_group(hand: Hand) -> None:
    _, group = claimed(hand)
    put_claim(hand, group.number, stored(hand, b"no group"), hand.trajectories, hand.curated)


@rich("behind its claim check says other things of itself")
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


@rich("merged delta of versions .* takes version")
def mg3_result_of_a_merged_delta_altered(hand: Hand) -> None:
    change_merged(hand, weights_hash="0" * 64)


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


@shadow("of solver.other .*which it names, is not published|of solver.other")
def sh7_event_of_a_shadow_removed(o: Hand) -> None:
    o.remove(o.event(o.middle)[0])


@rich("solver.other")
def sh11_batch_of_the_policy_among_the_shadows(hand: Hand) -> None:
    o = other(hand)
    message, batch = hand.batch()
    o.append(o.batch()[0], batch, headers=message.headers)


@rich("version 0 of solver.other")
def sh13_shadow_that_begins_from_other_weights(hand: Hand) -> None:
    """Its version 0 is the policy's version 1, in its event and its pointer; the chain goes on as it was."""
    o = other(hand)
    message, event = o.event(0)
    put = hand.event(0)[1]
    assert event.weights_hash == put.weights_hash
    o.put(message, replace(event, weights_hash=hand.event(1)[1].weights_hash))


@rich("curate.solver.other has committed offset")
def sh15_commit_of_a_shadows_curator_back(hand: Hand) -> None:
    hand.commit(hand.topics.curate_group(OTHER), lambda offset: offset - 20)


@rich("curated.solver.other.* before offset .* are gone")
def sh21_oldest_curated_records_of_a_shadow_gone(hand: Hand) -> None:
    other(hand).cut_head(hand.topics.curated(OTHER), 3)


@shadow("solver.other", LIVE)
def sh23_number_vanished_from_a_shadow(o: Hand) -> None:
    number = o.trained[0].number
    change_batch(o, o.middle, lambda groups: tuple(g for g in groups if g.number != number))
    o.remove(*o.about(o.curated, number), *o.about(o.outcomes, number))


# --------------------------------------------------------------------------------------------------------- two policies


def judge(hand: Hand) -> Hand:
    return hand.of("verifier")


def in_both(hand: Hand) -> int:
    """A number that the verifier trained, and the solver concluded."""
    done = {int(dict(m.headers)["number"]) for m in hand.all(hand.outcomes)}
    return next(g.number for g in judge(hand).trained if g.number in done)


@pair("whose topic is another")
def mp2_outcome_of_another_policy(hand: Hand) -> None:
    j, number = judge(hand), in_both(hand)
    message, outcome = j.outcome(number)
    hand.append(hand.outcome(number)[0], outcome, headers=message.headers)


@pair("it is of task .* and another record of .* of another")
def mp11b_task_of_another_policys_group_and_outcome(hand: Hand) -> None:
    j, number = judge(hand), in_both(hand)
    j.change_group(number, lambda g: replace(g, task_id="another"))
    message, outcome = j.outcome(number)
    j.put(message, replace(outcome, task_id="another"))


verifier.add("mp14_result_of_one_policy_removed", "evaluation", lambda j: j.remove(j.all(j.evals)[0]), FINISHED)


@pair("curate.verifier has committed offset")
def mp18_commit_of_one_policys_curator_back(hand: Hand) -> None:
    hand.commit(hand.topics.curate_group("verifier"), lambda offset: offset - 10)


@verifier("of verifier")
def mp20_number_vanished_from_one_policy(j: Hand) -> None:
    number = j.trained[0].number
    change_batch(j, j.middle, lambda groups: tuple(g for g in groups if g.number != number))
    for topic in (j.curated, j.outcomes, j.trajectories):
        j.remove(*j.about(topic, number))
