"""Shopping by text: the exact reward, the pages, and goals that an oracle reaches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from random import Random

import pytest
from test_household import as_task

from headrace.envs.contract import Problem, Split
from headrace.envs.registry import EnvironmentSettingsError, load_environment
from headrace.envs.worlds.shop import read_action, read_goal
from headrace.envs.worlds.shop_catalogue import draw_catalogue, draw_tiny_catalogue
from headrace.envs.worlds.shop_reward import (
    Goal,
    Product,
    compute_reward,
    compute_token_set_ratio,
    normalize_colour,
    rate_type,
)
from headrace.envs.worlds.webshop import NO_ACTION, OVER, TIERS, Webshop

SHAMPOO = Product(
    "B01", "Kano Repair Shampoo", "shampoo", ("beauty", "hair", "shampoo"), frozenset({"shampoo"}), 35.0,
    ("tea tree", "essential oil", "natural ingredients"), {"color": ("grey", "black forest"), "size": ("xl", "s")},
)  # fmt: skip
GOAL = Goal(
    "", ("tea tree", "essential oils", "natural ingredients"), {"color": "grey"}, 40.0, "shampoo",
    ("beauty", "hair", "shampoo"), frozenset({"shampoo"}),
)  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "ratio"),
    [
        ("fuzzy was a bear", "fuzzy fuzzy was a bear", 100),
        ("fuzzy was a bear but not a dog", "fuzzy was a bear", 100),
        ("essential oil", "essential oils", 96),
        ("Cool Powder-Snow!", "powder snow", 100),
        ("tea tree", "tea bag", 60),
        ("abc", "xyz", 0),
        ("", "abc", 0),
        ("new york mets", "new york yankees", 76),
    ],
)
def test_the_token_set_ratio_is_that_of_thefuzz(one: str, other: str, ratio: int) -> None:
    assert compute_token_set_ratio(one, other) == compute_token_set_ratio(other, one) == ratio


@pytest.mark.parametrize(
    ("changes", "options", "reward"),
    [
        ({}, {"color": "grey"}, 1.0),
        ({"attributes": ("tea tree", "essential oil")}, {"color": "grey"}, 4 / 5),
        ({"attributes": ("tea tree", "essential oil"), "price": 40.5}, {"color": "grey"}, 3 / 5),
        (
            {"attributes": (), "features": ("has essential oils",), "description": "With Natural ingredients."},
            {},
            3 / 5,
        ),
        ({}, {}, 4 / 5),
        ({}, {"color": "red"}, 4 / 5),
        ({"attributes": ("tea tree", "essential oil"), "nouns": frozenset({"hat"})}, {"color": "grey"}, 0),
    ],
)
def test_the_reward_is_the_share_of_what_matches(
    changes: Mapping[str, object], options: Mapping[str, str], reward: float
) -> None:
    bought = replace(SHAMPOO, **changes)  # type: ignore[arg-type]
    assert compute_reward(bought, GOAL, options) == pytest.approx(reward)


def test_another_kind_of_product_gets_a_part_or_nothing() -> None:
    nouns = frozenset(f"n{at}" for at in range(20))
    other = replace(
        SHAMPOO, query="lamp", category=("beauty", "skin", "lamp"), nouns=frozenset({"n0", "n1", "n2", "n3"})
    )
    wanted = replace(GOAL, nouns=nouns)
    assert rate_type(replace(other, query="shampoo"), wanted) == 1
    assert rate_type(replace(other, category=("hair", "beauty")), wanted) == 1
    assert rate_type(replace(other, nouns=frozenset({"n0", "n1", "n2", "n3", "n4"})), wanted) == 1
    assert rate_type(other, wanted) == 0.5, "a fifth of the nouns is not enough"
    assert rate_type(replace(other, nouns=frozenset({"n0"})), wanted) == 0.1
    assert rate_type(replace(SHAMPOO, nouns=frozenset({"x"})), wanted) == 0, "though query and category are the same"
    assert rate_type(other, replace(wanted, nouns=frozenset())) == 0.5
    golden = replace(other, attributes=("tea tree", "essential oil"))
    assert compute_reward(golden, wanted, {"color": "grey"}) == pytest.approx(0.4)


def test_colours_are_compared_without_what_stands_around_them() -> None:
    assert [normalize_colour(one) for one in ("black forest", "xl", "light grey")] == ["black", "xl", "grey"]
    wanted = replace(GOAL, options={"color": "black"})
    assert compute_reward(SHAMPOO, wanted, {"color": "black forest"}) == 1


@pytest.mark.parametrize("tier", TIERS)
def test_the_oracle_gets_a_reward_of_one_for_every_goal(tier: str) -> None:
    world = Webshop(3, tiers=[tier])
    for split in ("train", "held_out"):
        for index in range(200):
            problem = as_task(world.problem(split, index))  # type: ignore[arg-type]
            steps = [world.act(problem, answer) for answer in world.solve(problem)]
            assert [step.reward for step in steps] == [0.0] * (len(steps) - 1) + [1.0]
            assert [step.done for step in steps] == [False] * (len(steps) - 1) + [True]
            assert len(steps) <= 10


@pytest.mark.parametrize("tier", TIERS)
def test_only_the_wanted_options_of_the_wanted_product_earn_all(tier: str) -> None:
    world = Webshop(1, tiers=[tier])
    products = {one.asin: one for one in (draw_tiny_catalogue() if tier == "tiny" else draw_catalogue(1000))}
    for index in range(200):
        goal = read_goal(world.problem("train", index).extra["goal"])
        options = products[goal.asin].options
        chosen = [dict(zip(options, values, strict=True)) for values in product(*options.values())]
        full = [one for one in chosen if compute_reward(products[goal.asin], goal, one) == 1]
        assert full == [goal.options]


def test_pages_and_clicks_are_those_of_webshop() -> None:
    world = Webshop(1)
    problem = as_task(world.problem("train", 0))
    goal = problem.extra["goal"]["text"]
    assert f"WebShop [SEP] Instruction: [SEP] {goal} [SEP] Search\nAvailable actions: " in problem.text
    query, *clicks = world.solve(problem)
    first = world.act(problem, f"Thought: [that] one\nAction: {query}").observation
    assert first.startswith(
        f"Instruction: [SEP] {goal} [SEP] Back to Search [SEP] Page 1 (Total results: 50) [SEP] Next >"
    )
    assert first.count("$") == 10
    second = world.act(problem, "click[Next >]").observation
    assert "Page 2 (Total results: 50) [SEP] < Prev [SEP] Next > [SEP]" in second
    assert world.act(problem, "search[hat]").observation == second, "there is no search bar"
    assert world.act(problem, "click[buy now]").observation == second
    assert world.act(problem, "click[< prev]").observation == first
    item = world.act(problem, clicks[0]).observation
    assert " [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now\n" in item
    assert "Back to Search [SEP] < Prev [SEP] No reviews." in world.act(problem, "click[reviews]").observation
    assert world.act(problem, "click[< prev]").observation == item
    assert world.act(problem, "click[< prev]").observation == first
    assert "WebShop [SEP]" in world.act(problem, "click[back to search]").observation
    assert "(Total results: 0)" in world.act(problem, "search[?]").observation
    ended = world.act(problem, "I want to buy it")
    assert (ended.observation, ended.reward, ended.done) == (NO_ACTION, 0.0, True)
    assert world.act(problem, query).observation == OVER


def test_the_tiny_shop_shows_only_what_is_to_be_chosen() -> None:
    world = Webshop(1, tiers=["tiny"])
    problem = as_task(world.problem("train", 0))
    answers = world.solve(problem)
    seen = [world.act(problem, answer) for answer in answers[:-2]]
    assert (problem.text, answers) == ("big rug,red,7\n", ["search[big rug]", "click[c2]", "click[red]", "click[buy]"])
    assert [one.observation for one in seen] == ["c2 big rug 3|k4 big rug 7|f9 big rug 6", "buy|pink|red|tan"]
    assert world.act(problem, "click[tan]").observation == "buy|pink|red|tan"
    assert world.act(problem, "click[buy]").reward == pytest.approx(2 / 3), "of another colour"


@pytest.mark.parametrize("tier", TIERS)
def test_no_goal_is_in_two_splits(tier: str) -> None:
    splits: tuple[Split, ...] = ("train", "held_out", "warm_start")
    world = Webshop(1, tiers=[tier])
    seen = [{world.problem(split, index).extra["goal"]["text"] for index in range(300)} for split in splits]
    assert all(seen)
    assert not seen[0] & seen[1] | seen[0] & seen[2] | seen[1] & seen[2]
    assert Webshop(2, tiers=[tier]).problem("held_out", 5) == world.problem("held_out", 5)


def test_no_text_raises_and_a_visit_of_a_thousand_clicks_keeps_no_more_than_its_page() -> None:
    world, draw = Webshop(1, products=100), Random(1)  # noqa: S311
    problem = as_task(world.problem("train", 0))
    for _ in range(1000):
        visit = problem.extra
        clickable = world._shop.list_clickable(visit) or ["x"]
        words = draw.choice(["é🙂\n", "]", "cotton", "", "x" * 50, *clickable])
        action = draw.choice(["search[{}]", "click[{}]", "CLICK[ {} ]", "[{}]", "{}"]).format(words)
        world.act(problem, action)
        problem.extra["is_over"] = False  # type: ignore[index]
    assert len(json.dumps(problem.extra)) < 2000
    assert read_action("click[a]b]") == ("click", "a")


@pytest.mark.parametrize("settings", [{"tiers": ["x"]}, {"tiers": "tiny"}, {"products": 0}, {"products": "many"}])
def test_settings_out_of_their_range_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(EnvironmentSettingsError, match="must be"):
        load_environment("webshop", 1, settings)


def test_a_goal_that_no_product_fits_is_told() -> None:
    world = Webshop(1, tiers=["tiny"])
    problem = world.problem("train", 0)
    extra = {**problem.extra, "goal": {**problem.extra["goal"], "price_upper": 0}}
    with pytest.raises(ValueError, match="no product"):
        world.solve(Problem("", "", extra=extra))
