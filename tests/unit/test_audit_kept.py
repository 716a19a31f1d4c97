"""What a deep audit says of the choices of chains, and of the order of curated groups."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from made_groups import group
from made_recipes import sums_recipe

from headrace.consumers.algorithms.contract import Candidate, Keep, Result, Stateless
from headrace.consumers.curate.curated_records import build_curated, build_group_outcome, build_rejection_outcome
from headrace.consumers.curate.revision_chains import load_policy_chain
from headrace.infra.kafka.clients import Message
from headrace.infra.recipe.settings import Recipe
from headrace.ops.audit.deep import UnfitValue, check_outcome_names
from headrace.ops.audit.delivery_order import DeliveryOrder
from headrace.ops.audit.kept_choice import KeptChecks
from headrace.schemas.headers import outcome_stamp
from headrace.schemas.ids import LONGEST_NAME
from headrace.schemas.records import ClaimCheck, CuratedGroup, Outcome, TrajectoryGroup

FILTERS: list[Any] = [
    {"use": "failures", "policy": "count_as_zero"},
    "validate",
    {"use": "max_staleness"},
    {"use": "length_bounds", "longest": 4},
    {"use": "mask_truncated"},
    "drop_zero_variance",
]
CHAINS: list[list[Any]] = [
    FILTERS,
    [*FILTERS, {"use": "pods", "m": 2}],
    [*FILTERS, {"use": "random_m", "m": 2}, {"use": "replay_uniform"}],
    [*FILTERS, {"use": "scale_rewards", "bias": 1.0}, "normalise_rewards", {"use": "best_and_worst", "m": 2}],
    [*FILTERS, {"use": "overlong", "limit": 3}, "linear_length", "kimi_length", {"use": "gfpo", "m": 2}],
    [f"{__name__}:Backwards"],
]
GROUPS = [
    group([1.0, 0.0, 2.0, 0.5], [1, 2, 3, 5], failed=1),
    group([1.0, 0.0, math.nan, 3.0], [1, 5, 3, 4]),
    group([1.0, 0.0, 2.0], ids=["x" * 2 * LONGEST_NAME, "y", "y"]),
    group([0.0, 1.0]),
]


class Backwards(Stateless):
    """A user's own algorithm: it names the kept trajectories in another order, and gives other rewards."""

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:
        return [Keep(replace(candidate, kept=candidate.kept[::-1]).with_shaped_rewards([7.0] * len(candidate.rewards)))]


def recipe(chain: list[Any]) -> Recipe:
    return sums_recipe(trainer={"max_staleness": 4}, curate={"chain": chain})


def curated(chain: list[Any], made: TrajectoryGroup) -> tuple[CuratedGroup, list[Outcome]] | None:
    """The records that a curator makes of a group; None if the chain drops it."""
    verdict, *_ = load_policy_chain(recipe(chain), "solver").process(Candidate.of(made), 3)
    if not isinstance(verdict, Keep):
        return None
    outcome = build_group_outcome("solver", Candidate.of(made))
    rejected = [build_rejection_outcome(outcome, made, one) for one in verdict.candidate.rejected]
    return build_curated(verdict.candidate, b"", 4), rejected


def said(chain: list[Any], made: TrajectoryGroup, found: tuple[CuratedGroup, list[Outcome]], **more: Any) -> str:
    checks = KeptChecks("solver", [recipe(chain)])
    for outcome in found[1]:
        checks.fold_rejection(outcome)
    try:
        checks.check_first_use(found[0], made, **{"has_outcomes": True, **more})
    except UnfitValue as why:
        return str(why)
    return ""


def made_by_chains() -> Iterator[tuple[list[Any], TrajectoryGroup, CuratedGroup, list[Outcome]]]:
    for chain in CHAINS:
        for made in GROUPS:
            if (found := curated(chain, made)) is not None:
                yield chain, made, *found


def test_of_what_chains_choose_nothing_is_said() -> None:
    found = list(made_by_chains())
    assert len(found) > len(CHAINS), "some groups are kept"
    assert any(len(record.rewards) > len(made.trajectories) for _, made, record, _ in found), "failed episodes count"
    for chain, made, record, rejected in found:
        assert said(chain, made, (record, rejected)) == "", (chain, record)


FILTERED = group([1.0, 0.0, 2.0, 0.5], [1, 2, 3, 5])
"""The last one is longer than the filters allow."""


def altered(made: TrajectoryGroup = FILTERED, chain: list[Any] = FILTERS, **fields: Any) -> str:
    found = curated(chain, made)
    assert found is not None
    return said(chain, made, (replace(found[0], **fields), found[1]))


def test_another_choice_than_the_chain_can_have_made_is_named() -> None:
    assert altered() == ""
    assert re.fullmatch(
        r"its `kept` is \(2, 1, 0\), but must rise: .* revision 0 only takes .*", altered(kept=(2, 1, 0))
    )
    assert "must rise" in altered(kept=(0, 1, 1))
    exchanged = altered(kept=(0, 1, 3), rewards=(1.0, 0.0, 2.0, 0.5))
    assert exchanged == "it leaves out trajectory 'sums:1:2' of its group, but no outcome rejects that trajectory"
    assert "it leaves out 2 of the trajectories of its group, but outcomes reject 1" in altered(kept=(0, 1))
    assert re.match(
        "the reward of trajectory 1 is 1.0 in the record, but 0.0 in", altered(rewards=(1.0, 1.0, 2.0, 0.5))
    )
    assert "the reward of trajectory 1 is nan" in altered(rewards=(1.0, math.nan, 2.0, 0.5))
    assert "the reward of a failed episode is 1.0" in altered(group([1.0, 0.0], failed=1), rewards=(1.0, 0.0, 1.0))


def test_a_left_out_trajectory_may_count_or_not() -> None:
    assert altered(rewards=(1.0, 0.0, 2.0, math.nan)) == ""
    assert altered(rewards=(1.0, 0.0, 2.0, 0.5)) == ""


def test_rewards_and_order_of_an_unknown_chain_are_not_judged() -> None:
    for chain in ([f"{__name__}:Backwards"], ["scale_rewards"]):
        assert altered(GROUPS[3], chain, rewards=(5.0, 6.0)) == "", "they were shaped"
    record = CuratedGroup(stream="sums", number=1, kept=(1, 0), rewards=(5.0, 6.0))
    assert said(["no_such_module:Own"], GROUPS[3], (record, [])) == "", "nobody knows what it does"
    assert said(FILTERS, GROUPS[3], (replace(record, revision=1), [])) == "", "a revision newer than the audit"


def test_what_cannot_be_compared_is_not_judged() -> None:
    record = CuratedGroup(stream="sums", number=1, kept=(0, 1), rewards=(1.0, 0.0))
    whole = group([1.0, 0.0, 2.0])
    assert said([], replace(whole, trajectories=(), claim=ClaimCheck("main", "k")), (record, [])) == "", "no store"
    full = replace(record, rewards=(1.0, 0.0, 2.0))
    assert said([], whole, (full, []), has_outcomes=False) == "", "outcomes come later in a running run"
    early = Outcome(stream="sums", number=1, level="trajectory", trajectory_id="sums:1:2")
    named = group([1.0, 0.0, 2.0], ids=["a", "b", "c"])
    assert said([], named, (full, [early])) == "", "early builds wrote the position"


# --------------------------------------------------------------------------------------------------- names of outcomes


def message_of(outcome: Outcome, **changes: Any) -> Message:
    stamp = outcome_stamp(outcome)
    made = Message("t.outcomes.solver", outcome.number % 4, 0, stamp.key, b"", stamp.to_headers())
    return replace(made, **changes)


OUTCOME = Outcome("r", "sums", 6, 0, "solver", n_asked=2)


def without_use(outcome: Outcome) -> list[tuple[str, bytes]]:
    return [header for header in outcome_stamp(outcome).to_headers() if header[0] != "use"]


def test_an_outcome_that_names_another_group_than_its_value_is_named() -> None:
    other = message_of(replace(OUTCOME, number=10))
    for changes, sentence in (
        ({"headers": other.headers}, "its number is b'10' by its headers, but b'6' by its value"),
        ({"key": other.key}, "its key is b'sums:10', but its value names sums:6"),
        ({"partition": 1}, "it is an outcome of number 6, so it must be on partition 2"),
    ):
        with pytest.raises(UnfitValue, match=re.escape(sentence)):
            check_outcome_names(message_of(OUTCOME, **changes), OUTCOME, 4)


def test_an_outcome_of_an_older_release_and_one_of_an_unreadable_record_are_right() -> None:
    check_outcome_names(message_of(OUTCOME), OUTCOME, 4)
    replayed = replace(OUTCOME, use=2, n_asked=0)
    check_outcome_names(message_of(replayed, headers=without_use(replayed)), replayed, 4)
    lost = replace(OUTCOME, n_asked=0, verdict="dropped", reason="undecodable")
    check_outcome_names(message_of(lost, partition=1), lost, 4)


# --------------------------------------------------------------------------------------------------------------- order


def order(curated: list[int], deliveries: list[tuple[int, bool]]) -> list[str]:
    """Numbers of first uses on partition 0, and of deliveries, each with whether it is the only one so far."""
    checks = DeliveryOrder("solver")
    for number in curated:
        checks.fold_first_use("sums", number, 0)
    for number, is_only in deliveries:
        checks.fold_delivery("sums", number, 0, is_only=is_only)
    return list(checks.problems())


def once(*numbers: int) -> list[tuple[int, bool]]:
    return [(number, True) for number in numbers]


def test_groups_curated_in_another_order_than_they_were_delivered_are_named() -> None:
    assert order([0, 8, 4], once(0, 12, 8, 4, 16)) == [], "sums 12 was dropped, and 16 is not curated yet"
    [what] = order([0, 4, 8], once(0, 8, 4))
    assert what.startswith("workers delivered sums:8 before sums:4, but the curated records of solver are in the other")
    checks = DeliveryOrder("solver")
    for number, partition in ((1, 1), (0, 0)):
        checks.fold_first_use("sums", number, partition)
    for number in (0, 1):
        checks.fold_delivery("sums", number, number, is_only=True)
    assert list(checks.problems()) == [], "partitions have no order between them"


def test_a_group_that_was_delivered_again_may_be_curated_later() -> None:
    assert order([4, 8, 0], [*once(0, 4, 8), (0, False)]) == [], "refused and sent back while the audit read"
    assert order([4, 8, 0], [(0, False), *once(4, 8), (0, True)]) == [], "refused before"
    assert order([0, 4, 8], [*once(0, 4), (0, False), *once(8)]) == [], "delivered twice, taken once"
    assert order([0, 4, 8], [*once(8, 0, 4), (4, False)]), "another group is not excused by it"
