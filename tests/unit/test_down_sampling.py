"""Which m of a group's n trajectories are trained on."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from made_groups import candidate, kept

from headrace.consumers.algorithms.best_and_worst import BestAndWorst
from headrace.consumers.algorithms.contract import Candidate, Keep, Rejection
from headrace.consumers.algorithms.gfpo import Gfpo
from headrace.consumers.algorithms.group_statistics import standardise
from headrace.consumers.algorithms.pods import Pods
from headrace.consumers.algorithms.random_m import RandomM

GOLDEN = (0.0, 0.1, 0.5, 0.5, 0.6, 0.9, 1.0, 1.0)
ALL = [Pods(2), BestAndWorst(2), RandomM(2), Gfpo(2)]


def chosen(algorithm: Any, whole: Candidate) -> tuple[int, ...]:
    return kept(algorithm.process(whole, 3)).kept


def test_what_does_not_count_is_never_chosen() -> None:
    for rewards in ((math.nan, 0.0, 1.0, 0.5), (0.0, 1.0, 0.5, math.nan), (0.5, math.nan, 1.0, 0.0)):
        for algorithm in (*ALL, Gfpo(2, by="reward_per_token")):
            assert not any(math.isnan(rewards[index]) for index in chosen(algorithm, candidate(*rewards)))
        for algorithm in (Pods(2), BestAndWorst(2)):
            assert {rewards[index] for index in chosen(algorithm, candidate(*rewards))} == {0.0, 1.0}
    assert len(chosen(Pods(2), candidate(math.nan, math.nan, 1.0))) == 1


# ----------------------------------------------------------------------------------------------------------------- PODS


def test_the_golden_subset_has_the_golden_variance_and_advantages() -> None:
    left = kept(Pods(4).process(candidate(*GOLDEN), 3))
    assert left.kept == (0, 1, 6, 7)
    assert np.nanvar(left.rewards) == pytest.approx(0.226875, abs=1e-12)
    advantages = [advantage for advantage in standardise(left.rewards) if not math.isnan(advantage)]
    assert advantages == pytest.approx([-0.95453, -0.77271, 0.86362, 0.86362], abs=1e-5)


def test_of_right_and_wrong_it_takes_half_and_half_else_all_of_the_rarer() -> None:
    for rewards, expected in (
        ((1, 1, 1, 1, 0, 0, 0, 0), (0, 1, 4, 5)),
        ((1, 0, 0, 0, 0, 0, 0, 0), (0, 1, 2, 3)),
        ((0, 1, 1, 1, 1, 1, 1, 1), (0, 1, 2, 3)),
        ((1, 1, 1, 1, 1, 1, 1, 1), (0, 1, 2, 3)),
    ):
        assert chosen(Pods(4), candidate(*rewards)) == expected


def by_trying_all(rewards: list[float], m: int) -> tuple[int, ...]:
    """Every k of 0..m, the plain way; exact, since rewards are whole numbers."""
    best: list[tuple[int, list[int]]] = []
    for k in range(m + 1):
        top = sorted(range(len(rewards)), key=lambda i: (-rewards[i], i))[:k]
        low = [i for i in sorted(range(len(rewards)), key=lambda i: (rewards[i], i)) if i not in top][: m - k]
        values = [int(rewards[i]) for i in top + low]
        best.append((-(m * sum(v * v for v in values) - sum(values) ** 2), sorted(top + low)))
    return tuple(min(best)[1])


def test_it_is_the_best_of_every_k_with_ties_by_the_smallest_ids() -> None:
    draw = np.random.default_rng(5)
    for _ in range(600):
        n = int(draw.integers(3, 12))
        m, rewards = int(draw.integers(2, n)), draw.integers(0, 4, n).astype(float).tolist()
        assert chosen(Pods(m), candidate(*rewards)) == by_trying_all(rewards, m), (rewards, m)


def test_rounding_does_not_decide_between_sets_of_equal_variance() -> None:
    """0.1, 0.5, 0.9: {0.9, 0.1, 0.5} either way; of four with m = 3 both ends differ by rounding alone."""
    for rewards in ((0.9, 0.7, 0.1, 0.3), (0.3, 0.1, 0.7, 0.9), (0.1, 0.3, 0.9, 0.7)):
        tied = [{rewards.index(0.9), rewards.index(0.1), rewards.index(value)} for value in (0.7, 0.3)]
        assert chosen(Pods(3), candidate(*rewards)) == tuple(min(sorted(some) for some in tied))


# -------------------------------------------------------------------------------------------------------- the relatives


def test_best_and_worst_take_both_ends_and_the_extra_one_is_a_best() -> None:
    assert chosen(BestAndWorst(4), candidate(*GOLDEN)) == (0, 1, 6, 7)
    assert chosen(BestAndWorst(3), candidate(*GOLDEN)) == (0, 6, 7)
    assert chosen(BestAndWorst(4), candidate(1, 1, 1, 1, 1, 1)) == (0, 1, 2, 3)
    assert chosen(BestAndWorst(2), candidate(0, 1, 0, 1)) == (0, 1)


def test_gfpo_takes_the_shortest_or_the_most_efficient() -> None:
    whole = candidate(0.0, 1.0, 1.0, 0.5, lengths=(30, 20, 10, 10))
    assert chosen(Gfpo(2), whole) == (2, 3)
    assert chosen(Gfpo(3), whole) == (1, 2, 3)
    assert chosen(Gfpo(2, by="reward_per_token"), whole) == (1, 2)


def test_a_random_subset_depends_on_seed_and_group_alone() -> None:
    whole = candidate(*range(8))
    first = chosen(RandomM(3, seed=7), whole)
    for other in (candidate(*range(8), number=2), candidate(*range(8), number=3)):
        RandomM(3, seed=7).process(other, 3)
    assert chosen(RandomM(3, seed=7), whole) == first
    assert {chosen(RandomM(3, seed=seed), whole) for seed in range(20)} != {first}
    assert {chosen(RandomM(3, seed=7), candidate(*range(8), number=number)) for number in range(20)} != {first}


# ------------------------------------------------------------------------------------------------------- common to them


def test_statistics_are_over_what_is_chosen_and_the_rest_is_told() -> None:
    whole, few = candidate(1.0, 0.0, 0.5, 0.25), candidate(1.0, 0.0, 0.5).without([Rejection(1, "truncated")])
    for algorithm in ALL:
        left = kept(algorithm.process(whole, 3))
        counted = tuple(index for index, reward in enumerate(left.rewards) if not math.isnan(reward))
        assert (len(left.kept), counted) == (2, left.kept)
        assert sorted([*left.kept, *(r.index for r in left.rejected)]) == [0, 1, 2, 3]
        assert {r.reason for r in left.rejected} == {"down_sampled"}
        assert list(algorithm.process(few, 3)) == [Keep(few)], "it is small enough"


def test_masked_members_and_failures_count_no_more() -> None:
    whole = candidate(1.0, 0.0, 0.5, 0.25).without([Rejection(0, "truncated")])
    for algorithm in ALL:
        left = kept(algorithm.process(dataclasses.replace(whole, rewards=(*whole.rewards, 0.0)), 3))
        assert (len(left.rewards), math.isnan(left.rewards[0]), len(left.kept)) == (4, True, 2)


def test_ids_are_ordered_by_their_sample_not_by_their_letters() -> None:
    whole = candidate(1.0, 1.0, 1.0, ids=("sums:1:10", "sums:1:9", "sums:1:2"))
    assert [chosen(algorithm, whole) for algorithm in (Pods(2), BestAndWorst(2), Gfpo(2))] == [(1, 2)] * 3
