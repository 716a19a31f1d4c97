"""Estimators against numbers worked out by hand, and what holds whatever the rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from headrace.trainers.advantages import (
    ADVANTAGES,
    Advantages,
    GroupBy,
    RewardedSequence,
    RewardError,
    Weight,
    gae,
    generalized_advantage,
    given,
    grpo,
    opo,
    pass_at_k,
    rae,
    reinforce_pp,
)

BY_KEY = ("grpo", "dr_grpo", "rloo", "maxrl", "opo", "pass_at_k", "gpg", "lite_ppo", "reinforce_pp_baseline")
"""Those that compare within a key."""
EIGHT = (1, 0, 0, 0, 1, 0, 0, 0)
LENGTHS = (10, 20, 20, 40, 10, 30, 30, 40)


def group(*rewards: float, role: str = "solver", index: int = 0) -> list[RewardedSequence]:
    return [RewardedSequence(trajectory, role, reward, group=index) for trajectory, reward in enumerate(rewards)]


def flat(advantages: Advantages) -> list[float]:
    return [float(each) for each in np.concatenate([np.empty(0), *map(np.atleast_1d, advantages)])]


# -------------------------------------------------------------------------------------------------- numbers worked out


def test_opo_weighs_the_baseline_by_length_and_by_the_mean_where_nothing_was_generated() -> None:
    sequences = [replace(one, length=length) for one, length in zip(group(*EIGHT), LENGTHS, strict=True)]
    np.testing.assert_allclose(opo(sequences)[:2], [0.9, -0.1], atol=1e-6)
    empty = [replace(one, length=0) for one in sequences]
    np.testing.assert_allclose(opo(empty)[:2], [0.75, -0.25], atol=1e-6)


def test_only_the_best_learns_by_pass_at_k_and_nobody_where_two_are_best() -> None:
    np.testing.assert_allclose(pass_at_k([0.2, 0.9, 0.5, 0.4]), [0, 1.35869, 0, 0], atol=1e-5)
    assert pass_at_k([0.2, 0.9, 0.9, 0.4]).tolist() == [0, 0, 0, 0]


def test_maxrl_is_zero_where_the_mean_is_not_above_zero() -> None:
    assert flat(ADVANTAGES["maxrl"]([-1.0, 0.5, 0.5])) == [0, 0, 0]
    assert flat(ADVANTAGES["maxrl"]([-2.0, 1.0])) == [0, 0]


def test_gae_passes_over_observations_and_moves_their_rewards_to_the_token_before() -> None:
    mask = [False, True, True, False, False, True]
    rewards = [0.5, 0, 0, 1.0, 2.0, 4.0]
    values = [9, 0.2, 0.4, 9, 9, 0.6]
    advantages, returns = generalized_advantage(rewards, values, gamma=0.9, lam=0.8, mask=mask)
    alone, their_returns = generalized_advantage([0.5, 3.0, 4.0], [0.2, 0.4, 0.6], gamma=0.9, lam=0.8)
    assert advantages[mask].tolist() == alone.tolist()
    assert returns[mask].tolist() == their_returns.tolist()
    assert not advantages[np.invert(mask)].any()
    assert generalized_advantage([1.0], mask=[False])[0].tolist() == [0], "nothing was generated"


def test_lambda_of_vapo_follows_the_length_and_is_never_below_zero() -> None:
    long, short = (RewardedSequence(0, "", 1.0, length=length) for length in (40, 10))
    np.testing.assert_allclose(gae([long], length_adaptive=0.05)[0][-3:], [0.25, 0.5, 1.0])
    np.testing.assert_allclose(gae([short], length_adaptive=0.05)[0][-3:], [0, 0, 1.0])


def test_the_workflows_baseline_is_subtracted_and_the_mean_where_it_gives_none() -> None:
    sequences = [replace(one, baseline=0.25) for one in group(1, 0)] + group(1, 0)[1:]
    np.testing.assert_allclose(given(sequences, weight="sequence"), [0.75, -0.25, -1 / 3], atol=1e-6)
    assert given([RewardedSequence(0, "", 0.1, baseline=0.1 + 1e-12)]).tolist() == [0]


def test_rae_keeps_a_baseline_for_each_role_and_goes_on_from_it() -> None:
    advantages, after = rae([1, 1, 0], ["white"] * 3)
    np.testing.assert_allclose(advantages, [1, 0.95, -0.0975], atol=1e-7)
    mixed, baselines = rae([1, 5, 1], ["white", "black", "white"])
    np.testing.assert_allclose(mixed, [1, 5, 0.95], atol=1e-7)
    last, end = rae([0], ["white"], baselines)
    np.testing.assert_allclose(last, [-0.0975], atol=1e-7)
    assert end == pytest.approx({"white": 0.092625, "black": 0.25})
    assert end["white"] == after["white"]


# ------------------------------------------------------------------------------------------- what is compared with what


def test_a_trajectory_weighs_once_however_many_sequences_it_has() -> None:
    sequences = [RewardedSequence(0, "solver", 1.0), *[RewardedSequence(1, "solver", 0.0)] * 3]
    by_trajectory = grpo(sequences, weight="trajectory")
    np.testing.assert_allclose(by_trajectory, np.array([0.5, -0.5, -0.5, -0.5]) / (0.70711 + 1e-5), atol=1e-5)
    by_sequence = grpo(sequences, weight="sequence")
    np.testing.assert_allclose(by_sequence, np.array([0.75, -0.25, -0.25, -0.25]) / (0.5 + 1e-5), atol=1e-5)


@pytest.mark.parametrize(
    ("group_by", "signs"), [("task", [0, 0, 1, -1]), ("task+role", [-1, 1, 1, -1]), ("task+role+turn", [0, 0, 0, 0])]
)
def test_each_key_is_compared_with_itself_alone(group_by: GroupBy, signs: list[int]) -> None:
    sequences = [
        RewardedSequence(0, "solver", 0.25, turn=0),
        RewardedSequence(1, "solver", 0.75, turn=1),
        RewardedSequence(0, "verifier", 1.0, turn=0),
        RewardedSequence(1, "verifier", 0.0, turn=1),
    ]
    if group_by == "task":
        assert np.sign(grpo(sequences, group_by=group_by, weight="sequence")).tolist() == [-1, 1, 1, -1]
        # As trajectories: (0.25 + 1) / 2 against (0.75 + 0) / 2.
        assert np.sign(grpo(sequences, group_by=group_by)).tolist() == [1, -1, 1, -1]
    else:
        assert np.sign(grpo(sequences, group_by=group_by)).tolist() == signs


# ------------------------------------------------------------------------------------------------ whatever the rewards


def test_equal_rewards_and_singletons_give_exactly_zero() -> None:
    for name in BY_KEY:
        for same in ([0.1] * 7, [1.0], [1.0, 1.0 + 1e-9], [-3e5] * 3, [0.0, 0.0]):
            assert flat(ADVANTAGES[name](group(*same))) == [0.0] * len(same), (name, same)


def test_no_sequences_have_no_advantages() -> None:
    assert not [name for name, estimator in ADVANTAGES.items() if name != "rae" and len(estimator([]))]


# ------------------------------------------------------------------------------------------------------------ bad input


def test_a_reward_that_is_not_finite_is_refused() -> None:
    for name in ADVANTAGES:
        for wrong in (float("nan"), float("inf"), -1e31):
            with pytest.raises(RewardError, match=r"rewards must be finite.*scorer"):
                ADVANTAGES[name](
                    [RewardedSequence(0, "", 1.0, baseline=0.0), RewardedSequence(1, "", wrong, baseline=0.0)]
                )


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (RewardedSequence(0, "", 1.0, baseline=float("nan")), "baselines must be finite"),
        (
            RewardedSequence(0, "", 1.0, length=2, token_rewards=np.zeros(3)),
            r"2 generated tokens and token rewards of shape \(3,\)",
        ),
        (RewardedSequence(0, "", 1.0, length=1, token_values=np.array([np.inf])), "token values must be finite"),
    ],
)
def test_what_no_advantage_follows_from_is_refused(member: RewardedSequence, why: str) -> None:
    with pytest.raises(RewardError, match=why):
        gae([member])


def test_a_group_to_which_no_baseline_was_given_is_refused() -> None:
    sequences = [RewardedSequence(0, "", 1.0, baseline=0.5), *group(1, 0, index=1)]
    with pytest.raises(RewardError, match="no sequence of a group has one"):
        given(sequences)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (partial(grpo, std="unbiased"), 'std must be "sample" or "population", got \'unbiased\''),
        (partial(grpo, eps=float("nan")), "eps must be a finite number"),
        (partial(reinforce_pp, gamma=1.5), "gamma must be from 0 to 1; got 1.5"),
        (partial(gae, length_adaptive=0), "length_adaptive must be above 0"),
    ],
)
def test_a_parameter_out_of_its_range_is_refused(call: Callable[..., Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        call([1.0, 0.0])


@pytest.mark.parametrize(("group_by", "weight"), [("task", "trajectory"), ("task+role", "sequence")])
def test_huge_rewards_have_advantages_or_are_refused_but_never_infinite(group_by: GroupBy, weight: Weight) -> None:
    for name in BY_KEY:
        advantages = ADVANTAGES[name](group(9e29, -9e29, 1.0), group_by=group_by, weight=weight)
        assert np.isfinite(flat(advantages)).all()
