from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from headrace.envs.contract import Problem
from headrace.infra.errors import UsageError
from headrace.infra.recipe.table import Named
from headrace.producers.feed.selectors.contract import ChoosesTier, KnowsSize, Selector
from headrace.producers.feed.selectors.dots import Dots
from headrace.producers.feed.selectors.draws import HashedDraws
from headrace.producers.feed.selectors.filter_solved import FilterSolved
from headrace.producers.feed.selectors.greso import Greso
from headrace.producers.feed.selectors.pools import Pools
from headrace.producers.feed.selectors.registry import SELECTORS, load_selector
from headrace.producers.feed.selectors.tiers import Tiers
from headrace.schemas.records import Outcome


def group(task_id: str, *rewards: float, tier: str = "") -> Outcome:
    return Outcome(task_id=task_id, tier=tier, rewards=rewards, component="curate", verdict="kept")


def problem(task_id: str) -> Problem:
    return Problem(task_id, "?")


def share_taken(selector: Selector, task_id: str, times: int = 4000) -> float:
    return sum(selector.select(problem(task_id)) for _ in range(times)) / times


# ----------------------------------------------------------------------------------------------------- filter solved


def test_a_task_that_is_solved_every_time_is_dropped_after_29_groups() -> None:
    selector = FilterSolved(1, retest=0.0)
    groups = 0
    while selector.select(problem("a")):
        selector.observe(group("a", 1.0, 1.0))
        groups += 1
    assert groups == 29
    assert selector.rates.rate("a") == pytest.approx(0.95290, abs=1e-5)
    assert selector.select(problem("b"))


def test_success_is_the_share_of_rewards_above_the_bar() -> None:
    selector = FilterSolved(1)
    selector.observe(group("a", 1.0, 0.1, 0.0, -1.0))
    assert selector.rates.rate("a") == pytest.approx(0.1 * 0.5)
    strict = FilterSolved(1, success_above=0.5, decay=0.0)
    strict.observe(group("a", 1.0, 0.1, 0.0, -1.0))
    assert strict.rates.rate("a") == 0.25


def test_a_solved_task_is_tested_again_and_comes_back_when_it_was_forgotten() -> None:
    selector = FilterSolved(1, prior=0.99, retest=0.05)
    assert share_taken(selector, "a") == pytest.approx(0.05, abs=0.015)
    selector.observe(group("a", 0.0, 0.0))
    assert share_taken(selector, "a", 10) == 1.0


# -------------------------------------------------------------------------------------------------------------- GRESO

EASY, HARD = (1.0, 1.0), (0.0, 0.0)


def test_chances_fall_with_the_streak_down_to_the_floor_of_their_kind() -> None:
    for easy, hard in ((0.05, 0.30), (0.10, 0.40)):
        selector, found = Greso(1, floor_easy=easy, floor_hard=hard), []
        for _ in range(5):
            selector.observe(group("e", *EASY))
            selector.observe(group("h", *HARD))
            found.append((selector.chance("e"), selector.chance("h")))
        assert found == [(max(0.5**streak, easy), max(0.5**streak, hard)) for streak in range(1, 6)]
        assert share_taken(selector, "h") == pytest.approx(hard, abs=0.03)


def test_variance_ends_a_streak_and_the_other_kind_begins_a_new_one() -> None:
    selector = Greso(1, floor_easy=0.0, floor_hard=0.0)
    chances = []
    for rewards in (EASY, EASY, HARD, HARD, HARD, EASY, (0.0, 1.0), (0.1, 0.1 + 1e-9), (0.5, 0.5)):
        selector.observe(group("a", *rewards))
        chances.append(selector.chance("a"))
    assert chances == [0.5, 0.25, 0.5, 0.25, 0.125, 0.5, 1.0, 0.5, 0.25]
    assert selector.streaks.snapshot() == {"a": -2}, "a mean of one half is hard"


def test_groups_that_say_nothing_of_variance_are_passed_over() -> None:
    selector = Greso(1)
    for rewards in ((), (1.0,), (1.0, float("nan")), (float("inf"), 1.0)):
        selector.observe(group("a", *rewards))
    assert (selector.counts.total, selector.chance("a")) == (0, 1.0)
    selector.observe(group("a", *[1.0] * 7, float("nan")))
    assert selector.chance("a") < 1, "one that is no number does not hide the others"


def armed(**settings: Any) -> Greso:
    selector = Greso(1, pass_size=1, **settings)
    selector.on_version(1)
    selector.observe(group("x", 0.0, 1.0))
    selector.on_version(2)
    assert selector.arming.armed
    selector.p_easy = selector.p_hard = 0.5
    return selector


def test_the_controller_steps_once_a_version_by_the_share_of_each_kind_and_within_bounds() -> None:
    selector = armed()
    for number in range(12):  # 1/12 easy and 2/12 hard: both just at their targets, so both fall
        selector.observe(group(str(number), *(EASY if number < 1 else HARD if number < 3 else (0.0, 1.0))))
    selector.on_version(9)
    assert (selector.p_easy, selector.p_hard) == (0.49, 0.49)
    selector.on_version(10)  # nothing was observed since
    assert (selector.p_easy, selector.p_hard) == (0.49, 0.49)
    selector.observe(group("a", *HARD))
    selector.on_version(11)
    assert (selector.p_easy, selector.p_hard) == (0.5, 0.48)
    wide = armed(step=0.2)
    for version in range(3, 9):
        wide.observe(group("a", *EASY))
        wide.on_version(version)
    assert (wide.p_easy, wide.p_hard) == (0.01, 0.99)


def test_the_controller_is_armed_by_one_pass_after_the_first_new_version_and_counts_are_cleared_before() -> None:
    selector = Greso(1)
    assert isinstance(selector, KnowsSize)
    selector.on_size(3)
    selector.on_version(0)  # what a run begins with
    for _ in range(5):
        selector.observe(group("a", *EASY))
    assert selector.chance("a") < 1, "skipping acts from the start"
    selector.on_version(1)
    for left in (3, 2, 1):
        assert (selector.arming.armed, selector.counts.total) == (False, 3 - left)
        selector.observe(group("a", *HARD))
    assert (selector.arming.armed, selector.p_hard) == (True, 0.5)
    selector.on_version(2)
    assert (selector.p_easy, selector.p_hard) == (0.51, 0.49)


def test_without_an_end_of_the_data_set_chances_are_never_moved_unless_a_pass_is_given() -> None:
    for pass_size, is_armed in ((None, False), (2, True)):
        selector = Greso(1, pass_size=pass_size)
        selector.on_size(None)
        selector.on_version(1)
        for _ in range(3):
            selector.observe(group("a", *EASY))
        assert selector.arming.armed == is_armed


# --------------------------------------------------------------------------------------------------------------- DOTS


def rated(selector: Dots, rates: dict[str, float]) -> Dots:
    for name, rate in rates.items():
        selector.rates.restore({**selector.rates.snapshot(), name: rate})
    return selector


def test_of_a_window_the_best_is_drawn_with_the_probability_of_the_paper() -> None:
    names = {"a": 0.5, "b": 0.498, "c": 0.52, "d": 0.4}
    for tau, shares in ((1e-3, [0.8808, 0.1192, 0.0, 0.0]), (0.1, [0.31578, 0.30952, 0.25853, 0.11617])):
        selector = rated(Dots(1, tau=tau, share=0.25, window=4), names)
        taken: Counter[str] = Counter()
        for _ in range(20_000):
            taken.update(name for name in names if selector.select(problem(name)))
        assert sum(taken.values()) == pytest.approx(20_000, rel=0.02)
        assert [taken[name] / 20_000 for name in names] == pytest.approx(shares, abs=0.012)


def test_the_nearest_to_the_target_are_taken_each_once_a_pass_and_an_unseen_one_before_them() -> None:
    rates = {str(number): number / 100 for number in range(100)}
    selector = rated(Dots(1, tau=1e-4, share=0.1, window=100), rates)
    taken = [[name for name in rates if selector.select(problem(name))] for _ in range(3)]
    assert set(taken[1]) == set(taken[2])
    assert Counter(taken[2]).most_common(1)[0][1] == 1
    assert {"49", "50", "51"} < set(taken[2]) <= {str(number) for number in range(44, 57)}
    assert len(taken[2]) == 10
    assert selector.select(problem("unseen"))


# -------------------------------------------------------------------------------------------------------------- pools


def test_a_task_is_in_the_pool_of_its_last_mean_and_edges_belong_to_the_pool_below() -> None:
    pools = ((0.0, 0.2), (0.25, 0.2), (0.26, 1.0), (0.75, 1.0), (0.76, 0.3), (1.0, 0.3), (7.0, 0.3))
    for mean, weight in pools:
        selector = Pools(1, easy=0.3)
        selector.observe(group("a", 0.5, 0.5))
        selector.observe(group("a", mean, mean))
        assert selector.weight("a") == weight, mean
        assert share_taken(selector, "a") == pytest.approx(weight, abs=0.03)
    selector.observe(group("a", *[1.0] * 9, *[0.0] * 27))
    assert selector.weight("a") == 0.2, "an edge is one though its parts are rounded"


def test_an_unseen_task_has_a_weight_of_its_own_and_the_largest_weight_is_always_taken() -> None:
    selector = Pools(1, hard=0.0, normal=2.0, easy=1.0, unseen=0.5)
    assert selector.weight("a") == 0.5
    for name, mean in (("h", 0.1), ("n", 0.5), ("e", 0.9)):
        selector.observe(group(name, mean, mean))
    assert [round(share_taken(selector, name), 1) for name in "hne"] == [0.0, 1.0, 0.5]
    selector.observe(group("n"))  # says nothing
    assert selector.weight("n") == 2.0


# -------------------------------------------------------------------------------------------------------------- tiers

TIERS = ("one", "two", "three")


def test_a_tier_opens_when_the_one_before_is_mastered_and_stays_open() -> None:
    selector = Tiers(1, floor=0.0)
    assert isinstance(selector, ChoosesTier)
    groups = 0
    while selector.choose(TIERS) == "one":
        selector.observe(group("a", 1.0, tier="one"))
        groups += 1
    assert groups == 16  # 1 - 0.9**16 = 0.8147
    for _ in range(20):
        selector.observe(group("a", 0.0, tier="one"))
    assert selector.choose(TIERS) == "two"
    for _ in range(16):
        selector.observe(group("b", 1.0, tier="two"))
        selector.observe(group("c", 1.0, tier="three"))
    assert selector.choose(TIERS) == "three", "beyond the last there is none"


def test_earlier_tiers_keep_a_share_of_the_problems() -> None:
    selector = Tiers(1, floor=0.2)
    assert {selector.choose(TIERS) for _ in range(100)} == {"one"}
    selector.passed = ["one", "two"]
    chosen = Counter(selector.choose(TIERS) for _ in range(8000))
    assert [chosen[tier] / 8000 for tier in TIERS] == pytest.approx([0.1, 0.1, 0.8], abs=0.02)


# --------------------------------------------------------------------------------------------------- what all promise

REWARDS = [(0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (0.0, 0.0, 0.0, 1.0), (), (0.2, 0.9)]


def life(selector: Selector, begin: int, end: int) -> list[Any]:
    """Ask, tell and raise versions in an order that only depends on where it begins; return what it said."""
    said: list[Any] = []
    for turn in range(begin, end):
        said.append(selector.select(problem(f"task-{turn * 7 % 40}")))
        if isinstance(selector, ChoosesTier):
            said.append(selector.choose(TIERS))
        selector.observe(group(f"task-{turn * 11 % 40}", *REWARDS[turn * 5 % 6], tier=TIERS[turn % 3]))
        if turn % 9 == 0:
            selector.on_version(turn // 9)
    return said


def built(name: str, seed: int = 3) -> Selector:
    quick: dict[str, dict[str, float]] = {
        "greso": {"pass_size": 50},
        "filter_solved": {"threshold": 0.4},
        "tiers": {"threshold": 0.1},
    }
    return load_selector(Named.model_validate({"use": name, **quick.get(name, {})}), seed)


@pytest.mark.parametrize("name", SELECTORS)
def test_a_selector_goes_on_from_its_snapshot_as_if_nothing_had_happened(name: str) -> None:
    one = built(name)
    life(one, 0, 300)
    state = json.loads(json.dumps(one.snapshot()))
    again = built(name)
    again.restore(state)
    assert life(again, 300, 600) == life(one, 300, 600)
    assert again.snapshot() == one.snapshot()


def test_a_run_can_be_repeated_and_another_seed_draws_otherwise() -> None:
    for name in SELECTORS:
        first, second, other = (life(built(name, seed), 0, 600) for seed in (3, 3, 4))
        assert first == second, name
        assert (first == other) == (name == "accept_all"), name


@pytest.mark.parametrize("name", ["filter_solved", "greso", "dots", "pools"])
def test_state_is_bounded_whatever_the_number_of_tasks_and_the_length_of_their_ids(name: str) -> None:
    selector = load_selector(Named.model_validate({"use": name, "remember": 100}), 1)
    for number in range(5000):
        selector.observe(group(f"{number}" * 50, 1.0, 1.0))
    assert len(json.dumps(selector.snapshot())) < 100 * 60 + 300


def test_draws_are_uniform_never_0_or_1_and_for_ever_the_same() -> None:
    draws = HashedDraws(1, "test")
    found = [draws.next() for _ in range(10_000)]
    assert found[0] == pytest.approx(0.11380193587063514, abs=1e-15)
    assert 0 < min(found) < 0.001
    assert 0.999 < max(found) < 1
    assert sum(found) / 10_000 == pytest.approx(0.5, abs=0.01)
    again = HashedDraws(1, "test")
    again.count = 9_999
    assert again.next() == found[-1]
    assert HashedDraws(1, "other").next() != found[0] != HashedDraws(2, "test").next()


def test_settings_that_make_no_sense_are_refused() -> None:
    for name, setting, value in (
        ("filter_solved", "decay", 1.0),
        ("filter_solved", "threshold", 2),
        ("filter_solved", "remember", 0),
        ("greso", "floor_easy", -0.1),
        ("greso", "p_easy", 0.995),
        ("greso", "pass_size", 0),
        ("dots", "tau", 0.0),
        ("dots", "share", 0.0),
        ("dots", "window", 0),
        ("pools", "hard", -1.0),
        ("pools", "normal_up_to", 0.2),
        ("tiers", "floor", 1.5),
    ):
        with pytest.raises(UsageError, match=rf"feed.selector '{name}' refuses its settings .*{setting}"):
            load_selector(Named.model_validate({"use": name, setting: value}), 1)
    for setting, sentence in (
        ("remember", "remember must be an integer, got 'many'"),
        ("seed", "no option 'seed'"),
    ):
        with pytest.raises(UsageError, match=f"^feed.selector, filter_solved: {sentence}"):
            load_selector(Named.model_validate({"use": "filter_solved", setting: "many"}), 1)
    with pytest.raises(ValueError, match="one of hard, normal and easy above 0"):
        Pools(1, hard=0, normal=0, easy=0)
    with pytest.raises(UsageError, match="needs an environment that has tiers"):
        Tiers(1).choose(())
