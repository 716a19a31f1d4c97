"""More ways to break a promise where a run has replays, a swap, groups in the store or a shadow.

Importing this adds them to RICH, the list of the others of such a run.
"""

from __future__ import annotations

from dataclasses import replace

from tampering_hand import Hand
from tamperings import FINISHED, Catalogue
from tamperings_new import NO_OUTCOME, alter
from tamperings_of_variants import OTHER, RICH, change_batch, of_use, replay_record

from headrace.infra.kafka.clients import Message
from headrace.schemas import codec
from headrace.schemas.records import ClaimCheck, CuratedGroup, RecipeRevision, TrajectoryGroup

rich = Catalogue(of=RICH)
shadow = rich.about(OTHER)


# -------------------------------------------------------------------------------------------------- groups in the store


def claimed(hand: Hand, numbers: list[int]) -> tuple[Message, TrajectoryGroup]:
    """A delivery of one of these numbers whose group is in the store."""
    for number in numbers:
        message = hand.about(hand.trajectories, number)[0]
        group = codec.decode(message.value, TrajectoryGroup)
        if group.claim is not None:
            return message, group
    raise AssertionError("no such group is in the store")


def claimed_dropped(hand: Hand) -> ClaimCheck | None:
    return claimed(hand, hand.concluded("dropped"))[1].claim


rich.add(
    "m60_object_of_a_dropped_group_gone",
    "trajectories.solver.* cannot be used, but has no dead letter: .* does not exist in the store",
    lambda hand: hand.lose(claimed_dropped(hand)),
)
rich.add(
    "m61_byte_of_a_dropped_group_altered",
    "trajectories.solver.* cannot be used, but has no dead letter: .* has sha256",
    lambda hand: hand.spoil(claimed_dropped(hand)),
)


def kept_by_both(hand: Hand) -> list[int]:
    """The numbers that the policy and the shadow have kept."""
    return sorted({*hand.concluded("kept")} & {*hand.of(OTHER).concluded("kept")})


def claim_everywhere(hand: Hand, claim: ClaimCheck | None) -> None:
    """Let the trajectories, and the curated records of policy and shadow, name another object for a group."""
    message, group = claimed(hand, kept_by_both(hand))
    hand.put(message, replace(group, claim=claim))
    for one in (hand, hand.of(OTHER)):
        for record in of_use(one, one.curated, group.number, 0):
            curated = codec.decode(record.value, CuratedGroup)
            hand.put(record, replace(curated, group=codec.encode(replace(group, claim=claim))))


@rich("the group in the object store does not match the record that points to it")
def m62_object_of_another_group_in_all_topics(hand: Hand) -> None:
    claim_everywhere(hand, claimed_dropped(hand))


# -------------------------------------------------------------------------------------------------------------- replays


rich.altered(
    "rp60_weight_of_a_replay",
    "has a log_hash that does not follow from the record before it",
    replay_record,
    weight=5.0,
)
rich.altered(
    "rp62_deadline_of_a_replay_later",
    "has a log_hash that does not follow from the record before it",
    replay_record,
    deadline_version=lambda curated: curated.deadline_version + 5,
)


@rich("expected a record TrajectoryGroup, but the message holds a record")
def rp63_bytes_in_a_replay(hand: Hand) -> None:
    message, curated = replay_record(hand)
    hand.put(message, replace(curated, group=of_use(hand, hand.curated, curated.number, 0)[0].value))


@rich("has a log_hash that does not follow from the record before it", FINISHED)
def rp64_replay_gone_from_all_topics(hand: Hand) -> None:
    message, curated = replay_record(hand)
    hand.remove(message, *of_use(hand, hand.outcomes, curated.number, 1))
    for version in list(hand.versions):
        change_batch(hand, version, lambda uses: tuple(u for u in uses if (u.number, u.use) != (curated.number, 1)))


@rich("was trained after its deadline|before")
def rp65_replay_trained_in_place_of_its_first_use(hand: Hand) -> None:
    uses = {(use.number, use.use): (v, use) for v, (_, batch) in hand.versions.items() for use in batch.groups}
    numbers = [number for number, use in uses if use == 1 and (number, 0) in uses]
    (one, first), (other, replay) = next((uses[n, 0], uses[n, 1]) for n in numbers if uses[n, 0][0] != uses[n, 1][0])
    change_batch(hand, one, lambda groups: tuple(replay if use == first else use for use in groups))
    change_batch(hand, other, lambda groups: tuple(first if use == replay else use for use in groups))


# ----------------------------------------------------------------------------------------------------------------- swap


@rich("the recipe topic begins with revision 1, not 0")
def sw61_revisions_reordered(hand: Hand) -> None:
    (one, _), (other, _), *_ = hand.decoded(hand.recipe, RecipeRevision)
    hand.exchange(one, other)


# --------------------------------------------------------------------------------------------------------------- shadow


@rich("has a log_hash that does not follow from the record before it", FINISHED)
def sh60_curated_values_of_policy_and_shadow_exchanged(hand: Hand) -> None:
    number = next(number for number in kept_by_both(hand) if number in {use.number for use in hand.trained})
    one, other = (of_use(h, h.curated, number, 0)[0] for h in (hand, hand.of(OTHER)))
    hand.exchange(one, other, values=True)


rich.add(
    "sh61_batches_of_policy_and_shadow_exchanged",
    "batches.solver.* it is of policy solver.other|went back|no batch record names version 3",
    lambda hand: hand.exchange(hand.batch(3)[0], hand.of(OTHER).batch(3)[0]),
)
rich.add(
    "sh62_events_of_policy_and_shadow_exchanged",
    "version 3 of solver was published after version|it is of policy solver.other, but on the topic",
    lambda hand: hand.exchange(hand.event(3)[0], hand.of(OTHER).event(3)[0]),
)
rich.add(
    "sh63_delta_of_the_policy_in_an_event_of_the_shadow",
    "version 3 of solver.other, announced by .*: it is not the delta that its record says: base_hash",
    lambda hand: alter(hand.of(OTHER).event(3), hand, weights=hand.event(3)[1].weights),
)
rich.add(
    "sh64_commits_of_the_shadow_that_name_another_snapshot",
    "the commit of consumer group .*curate.solver.other .* is newer, and no commit names it",
    lambda hand: hand.commit(hand.topics.curate_group(OTHER), lambda offset: offset, metadata='{"snapshot": 1}'),
)


@rich(f"solver.other {NO_OUTCOME}")
def sh65_outcome_of_a_shadow_replaced_by_a_dead_letter(hand: Hand) -> None:
    """The dead letter of a policy concludes nothing in its shadow."""
    other = hand.of(OTHER)
    number = other.dropped
    [message] = hand.about(hand.trajectories, number)
    hand.remove(other.outcome(number)[0])
    headers = dict(message.headers)
    hand.forge_letter(message, number, policy=OTHER, component="curate.solver.other", key=message.key, headers=headers)


shadow.add(
    "sh66_last_version_of_a_shadow_not_marked_as_final",
    "the last version of solver.other is not marked as final",
    lambda o: alter(o.event(10), o, final=False),
    FINISHED,
)
shadow.add(
    "sh67_newest_curated_records_of_a_shadow_gone",
    "of solver.other .*was kept, but has no curated record",
    lambda o: o.cut_tail(o.curated, 2),
)
shadow.add(
    "sh68_curated_records_of_a_shadow_reordered",
    r"of solver.other (\(use 1\) )?has its curated record at another offset than its batch record gives",
    lambda o: o.exchange(o.curated_record()[0], o.beside(o.curated_record()[0])),
)
shadow.add(
    "sh69_outcome_of_a_shadow_repeated",
    "of solver.other was discarded more than once",
    lambda o: o.append(o.outcome(o.dropped)[0]),
)
shadow.add("sh70_delta_of_a_shadow_gone", "of solver.other, .* does not exist", lambda o: o.lose(o.event(3)[1].weights))
shadow.add(
    "sh71_checkpoint_of_a_shadow_removed",
    "version 4 of solver.other has no checkpoint record on `state`",
    lambda o: o.remove(o.pointer(4)[0]),
)
shadow.add(
    "sh72_base_of_a_shadows_batch_is_that_of_the_policys",
    "version 3 of solver.other was trained from weights .*, but the version before it has weights",
    lambda o: alter(o.batch(3), o, base_hash=o.of("solver").batch(3)[1].base_hash),
)


@shadow("version 2 of solver.other was trained on the group at .*, but its trainer had read that partition only")
def sh73_groups_of_two_batches_of_a_shadow_exchanged(o: Hand) -> None:
    one, other = o.batch(2), o.batch(3)
    alter(one, o, groups=other[1].groups)
    alter(other, o, groups=one[1].groups)
