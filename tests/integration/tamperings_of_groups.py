"""Ways to change what a chain chose, what an outcome is about, and the order of groups: the rest of the catalogue."""

from __future__ import annotations

from tampering_hand import Hand
from tamperings import Catalogue

from headrace.infra.kafka.clients import Message
from headrace.schemas.headers import task_key
from headrace.schemas.records import Outcome

tampering = Catalogue()
OF_GROUPS = tampering.all


# -------------------------------------------------------------------------------------------------------------- curated


tampering.altered(
    "g1_rewards_of_a_curated_record_altered",
    "has a log_hash that does not follow from the record before it",
    Hand.curated_record,
    rewards=lambda curated: tuple(1 - reward for reward in curated.rewards),
)
tampering.altered(
    "g2_kept_reversed",
    "has a log_hash that does not follow from the record before it",
    Hand.curated_record,
    kept=lambda curated: curated.kept[::-1],
)


# ------------------------------------------------------------------------------------------------------------- outcomes


def about_another(hand: Hand) -> tuple[Message, Outcome, int]:
    """An outcome of a dropped group, and the next number of its partition."""
    message, outcome = hand.outcome(hand.dropped)
    return message, outcome, outcome.number + hand.partitions


@tampering("outcomes.solver.* its key is .*, but its value names sums:")
def g4_key_of_an_outcome_of_another_group(hand: Hand) -> None:
    message, _, other = about_another(hand)
    hand.put(message, key=task_key("sums", other))


@tampering("outcomes.solver.* its number is .* by its headers, but .* by its value")
def g5_headers_of_an_outcome_of_another_group(hand: Hand) -> None:
    message, _, other = about_another(hand)
    hand.put(message, headers=hand.renumber(message, number=other))


@tampering("outcomes.solver.* it is an outcome of number .*, so it must be on partition")
def g6_outcome_on_another_partition(hand: Hand) -> None:
    message, _, _ = about_another(hand)
    hand.remove(message)
    hand.append(message, partition=(message.partition + 1) % hand.partitions)


# --------------------------------------------------------------------------------------------------------- trajectories
