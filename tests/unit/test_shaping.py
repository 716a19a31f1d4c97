"""What is made of rewards before they are compared."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from made_groups import candidate, dropped, kept, sequence

from headrace.consumers.algorithms.chain import load_chain
from headrace.consumers.algorithms.contract import Candidate, Drop, Rejection
from headrace.consumers.algorithms.drop_zero_variance import DropZeroVariance
from headrace.consumers.algorithms.kimi_length import KimiLength
from headrace.consumers.algorithms.linear_length import LinearLength
from headrace.consumers.algorithms.normalise_rewards import NormaliseRewards
from headrace.consumers.algorithms.overlong import Overlong
from headrace.consumers.algorithms.scale_rewards import ScaleRewards


def shaped(algorithm: Any, whole: Candidate) -> tuple[float, ...]:
    return kept(algorithm.process(whole, 3)).rewards


def with_failure(whole: Candidate) -> Candidate:
    """With one failed episode that counts as 0."""
    return dataclasses.replace(whole, rewards=(*whole.rewards, 0.0))


def without_first(whole: Candidate) -> Candidate:
    return whole.without([Rejection(0, "invalid")], counted=False)


# -------------------------------------------------------------------------------------------------------- scale_rewards


def test_rewards_are_shifted_scaled_and_clipped_in_that_order() -> None:
    assert shaped(ScaleRewards(bias=-0.5, scale=10.0, clip=4.0), candidate(1.0, 0.0, 0.75)) == (4.0, -4.0, 2.5)
    assert shaped(ScaleRewards(), candidate(100.0, -100.0, 3.0)) == (20.0, -20.0, 3.0)
    assert shaped(ScaleRewards(clip=0.0), candidate(100.0, -100.0)) == (100.0, -100.0)


def test_what_does_not_count_stays_so_and_a_failure_stays_0() -> None:
    first, *others = shaped(ScaleRewards(bias=1.0), without_first(with_failure(candidate(5.0, 1.0, 0.0))))
    assert math.isnan(first)
    assert others == [2.0, 1.0, 0.0]


# ------------------------------------------------------------------------------------------------------------- overlong


def test_the_overlong_penalty_grows_through_the_buffer() -> None:
    """The golden numbers of L_max 100, L_c 20."""
    for length, penalty in ((79, 0), (80, 0), (81, -0.05), (90, -0.5), (100, -1), (101, -1), (999, -1)):
        assert Overlong(100, 20).penalty(length) == pytest.approx(penalty)
        assert shaped(Overlong(100, 20), candidate(1.0, 0.0, lengths=(length, 1))) == pytest.approx((1 + penalty, 0))
    assert [Overlong(100, 0).penalty(length) for length in (100, 101)] == [0.0, -1.0]


def test_the_buffer_is_a_fifth_of_the_limit_and_the_factor_multiplies() -> None:
    paper = Overlong(20480)
    assert (paper.penalty(16384), paper.penalty(18432), paper.penalty(20480)) == (0.0, -0.5, -1.0)
    assert Overlong(100, 20, factor=0.5).penalty(90) == -0.25
    assert Overlong(100, 20, factor=0.5).penalty(200) == -0.5


def test_what_is_overlong_may_be_masked_instead() -> None:
    left = kept(Overlong(100, 20, action="mask").process(candidate(1.0, 0.0, 0.5, lengths=(101, 100, 5)), 3))
    assert (left.kept, left.rewards) == ((1, 2), (1.0, 0.0, 0.5))
    assert [(r.index, r.reason) for r in left.rejected] == [(0, "overlong")]
    assert dropped(Overlong(1, action="mask").process(candidate(1.0, 0.0, lengths=(2, 2)), 3)) == "overlong"


def test_a_penalty_gives_no_variance_to_a_group_that_is_wrong_throughout() -> None:
    """Whichever of the two comes first."""
    whole = candidate(0.0, 0.0, lengths=(95, 5))
    for named in (["overlong", "drop_zero_variance"], ["drop_zero_variance", "overlong"]):
        chain = load_chain([(name, {"limit": 100} if name == "overlong" else {}) for name in named])
        assert chain.process(whole, 3) == (Drop("zero_variance", "all 2 rewards are 0.0"),)
    assert len(set(shaped(Overlong(100), whole))) == 2
    assert isinstance(next(iter(DropZeroVariance().process(kept(Overlong(100).process(whole, 3)), 3))), Drop)


# ----------------------------------------------------------------------------------------------------- length penalties


def linear() -> Candidate:
    sizes = ((100, 50, 1), (200, 50, 1), (200, 100, 2), (400, 100, 2))
    return candidate(1.0, 1.0, 0.0, 0.0, sequences=[sequence(o, prompt=p, turns=k) for o, p, k in sizes])


def test_the_linear_penalty_has_its_golden_numbers() -> None:
    assert shaped(LinearLength(centre=False), linear()) == pytest.approx((0.91875, 0.8875, -0.1625, -0.225), abs=1e-12)
    assert shaped(LinearLength(), linear()) == pytest.approx((0.56406, 0.53281, -0.51719, -0.57969), abs=1e-5)
    assert shaped(LinearLength(), candidate(0.0, 0.0, lengths=(1, 99))) == (0.0, 0.0), "never solved, so no penalty"


def test_the_linear_penalty_centres_failed_episodes_that_count_with_the_others() -> None:
    *members, failed = shaped(LinearLength(output=0, prompt=0, turns=0), with_failure(candidate(1.0, 0.5)))
    assert [*members, failed] == pytest.approx([0.5, 0.0, -0.5])


def test_a_group_of_which_nothing_counts_is_left_alone() -> None:
    nothing = candidate(1.0, 0.0).without([Rejection(0, "x"), Rejection(1, "x")], counted=False)
    for algorithm in (LinearLength(), KimiLength(), NormaliseRewards(), ScaleRewards(), Overlong(9)):
        for whole in (nothing, Candidate.of(dataclasses.replace(nothing.group, trajectories=()))):
            assert all(math.isnan(reward) for reward in shaped(algorithm, whole))


def test_what_was_refused_is_no_yardstick_of_length() -> None:
    whole = without_first(candidate(1.0, 1.0, 1.0, lengths=(900, 10, 20)))
    _, *others = shaped(LinearLength(prompt=0, turns=0, centre=False), whole)
    assert others == pytest.approx([1 - 0.125, 1 - 0.25])
    _, *others = shaped(KimiLength(), whole)
    assert others == pytest.approx([1.5, 0.5])


def test_kimis_bonus_has_its_golden_numbers() -> None:
    lengths = (100, 200, 300)
    assert shaped(KimiLength(), candidate(1.0, 1.0, 1.0, lengths=lengths)) == pytest.approx((1.5, 1.0, 0.5))
    assert shaped(KimiLength(), candidate(0.0, 0.0, 0.0, lengths=lengths)) == pytest.approx((0.0, 0.0, -0.5))
    assert shaped(KimiLength(weight=0.5), candidate(1.0, 1.0, 1.0, lengths=lengths)) == pytest.approx((1.25, 1, 0.75))


def test_kimis_bonus_is_nothing_where_lengths_are_equal_and_knows_what_is_right() -> None:
    assert shaped(KimiLength(), candidate(1.0, 0.0, lengths=(7, 7))) == (1.0, 0.0)
    graded = candidate(0.4, 0.6, lengths=(100, 300))
    assert shaped(KimiLength(right_above=0.5), graded) == pytest.approx((0.4, 0.1))
    assert shaped(KimiLength(), graded) == pytest.approx((0.9, 0.1))


# ---------------------------------------------------------------------------------------------------- normalise_rewards


def test_standard_rewards_are_the_golden_advantages() -> None:
    rewards = shaped(NormaliseRewards(), candidate(1, 0, 0, 0, 1, 0, 0, 0))
    assert rewards == pytest.approx((1.62015, *[-0.54005] * 3, 1.62015, *[-0.54005] * 3), abs=1e-5)
    assert shaped(NormaliseRewards(), candidate(*[0.1] * 7)) == (0.0,) * 7, "exactly"


def test_rewards_are_centred_over_all_that_count() -> None:
    whole = without_first(with_failure(candidate(9.0, 1.0, 0.5)))
    first, *others = shaped(NormaliseRewards("centre"), whole)
    assert math.isnan(first)
    assert others == pytest.approx([0.5, 0.0, -0.5])
