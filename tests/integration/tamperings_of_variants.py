"""Ways to break a promise in the log of a run with more in it: replays, a swap, a shadow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tampering_hand import Hand
from tamperings import LIVE, Catalogue

from headrace.infra.kafka.clients import Message
from headrace.schemas import codec
from headrace.schemas.records import (
    CuratedGroup,
    GroupUse,
    RecipeRevision,
)

OTHER = "solver.other"
"""The shadow."""
rich = Catalogue()
shadow = rich.about(OTHER)
RICH = rich.all


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


def change_batch(hand: Hand, version: int, change: Callable[[tuple[GroupUse, ...]], tuple[GroupUse, ...]]) -> None:
    message, batch = hand.batch(version)
    hand.put(message, replace(batch, groups=change(batch.groups)))


@rich("has a log_hash that does not follow from the record before it")
def rp14_first_back_altered(hand: Hand) -> None:
    message, curated = replay_record(hand)
    hand.put(message, replace(curated, first_back=curated.first_back + 7))


# ----------------------------------------------------------------------------------------------------------------- swap


@rich("under recipe revision 1, which the recipe topic lacks|the revisions between are missing")
def sw1_second_revision_removed(hand: Hand) -> None:
    hand.remove(*(m for m, r in hand.decoded(hand.recipe, RecipeRevision) if r.revision == 1))


# --------------------------------------------------------------------------------------------------------------- shadow


def other(hand: Hand) -> Hand:
    """The same copy of the run, and the shadow's topics."""
    return hand.of(OTHER)


@shadow("of solver.other was read by the curators, but has no outcome and no dead letter|never concluded|no outcome")
def sh1_outcome_of_a_shadow_removed(o: Hand) -> None:
    o.remove(o.outcome(o.dropped)[0])


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
    hand.commit(hand.topics.curate_group(OTHER), lambda _: 0)  # before any snapshot, however old the newest one is


@rich("curated.solver.other.* before offset .* are gone")
def sh21_oldest_curated_records_of_a_shadow_gone(hand: Hand) -> None:
    other(hand).cut_head(hand.topics.curated(OTHER), 3)


@shadow("solver.other", LIVE)
def sh23_number_vanished_from_a_shadow(o: Hand) -> None:
    number = o.trained[0].number
    change_batch(o, o.middle, lambda groups: tuple(g for g in groups if g.number != number))
    o.remove(*o.about(o.curated, number), *o.about(o.outcomes, number))
