"""The estimator that a recipe names: found, tried, and put over a whole batch at once."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from made_recipes import sums_recipe

from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Recipe, TrainerSettings
from headrace.infra.recipe.table import Named
from headrace.ops.preflight.table import check_names
from headrace.trainers.advantages import ADVANTAGES, WHOLE_BATCH, RewardedSequence, grpo
from headrace.trainers.batches.estimator import COMPARISON, AdvantageError, Estimator, check_advantage, load_estimator


def settings(name: str, **changes: Any) -> TrainerSettings:
    own = {key: changes.pop(key) for key in list(changes) if key not in TrainerSettings.model_fields}
    return TrainerSettings(advantage=Named(use=name, **own), **changes)


def batch(*rewards: Sequence[float]) -> list[RewardedSequence]:
    return [
        RewardedSequence(n, "", reward, 0, 2, 0.5, index)
        for index, each in enumerate(rewards)
        for n, reward in enumerate(each)
    ]


def test_settings_and_the_keys_beside_them_reach_the_function() -> None:
    sequences = [
        RewardedSequence(0, "a", 1.0),
        RewardedSequence(0, "a", 0.0),
        RewardedSequence(1, "b", 0.0),
        RewardedSequence(1, "a", 0.5),
    ]
    chosen = settings("grpo", std="population", eps=0.1, group_by="task+role", weight="sequence")
    expected = grpo(sequences, std="population", eps=0.1, group_by="task+role", weight="sequence")
    assert np.asarray(load_estimator(chosen)(sequences)).tobytes() == expected.tobytes()
    assert not np.array_equal(expected, grpo(sequences))


def test_advantages_are_normalised_over_the_batch_on_demand() -> None:
    sequences = [replace(one, length=length) for one, length in zip(batch((1, 0), (1, 0.5)), (3, 1, 1, 1), strict=True)]
    plain = load_estimator(settings("dr_grpo"))(sequences)
    tokens = np.repeat(np.asarray(plain, np.float64), (3, 1, 1, 1))
    normalised = np.asarray(load_estimator(settings("dr_grpo", batch_norm=True))(sequences))
    np.testing.assert_allclose(normalised, (np.asarray(plain) - tokens.mean()) / (tokens.std(ddof=1) + 1e-5), atol=1e-6)


def test_an_estimator_says_whether_it_needs_the_whole_batch() -> None:
    sequences = batch((1, 0, 0), (1, 0.5))
    for name in ADVANTAGES:
        found = load_estimator(settings(name))
        alone = [np.asarray(one).tolist() for one in found(sequences[:3])]
        beside = [np.asarray(one).tolist() for one in found(sequences)][:3]
        assert found.whole_batch == (name in WHOLE_BATCH) == (alone != beside), name
    assert load_estimator(settings("grpo", batch_norm=True)).whole_batch


# ------------------------------------------------------------------------------------------------------- the user's own


def scaled(sequences: Sequence[RewardedSequence], *, scale: float = 1.0) -> list[float]:
    return [scale * one.reward for one in sequences]


def by_token(sequences: Sequence[RewardedSequence], *, group_by: str, weight: str) -> list[list[float]]:
    return [[one.reward if group_by == "task+role" and weight == "sequence" else 0.0] * one.length for one in sequences]


def torn(sequences: Sequence[RewardedSequence]) -> list[float]:
    missing: dict[int, list[float]] = {}
    return missing[len(sequences)]


def compared(sequences: Sequence[RewardedSequence]) -> list[float]:
    if len({one.group for one in sequences}) < 2:
        raise ValueError("one group")
    return [one.reward for one in sequences]


def in_place(sequences: Sequence[RewardedSequence]) -> list[Any]:
    for one in sequences:
        if one.token_rewards is not None:
            for at in reversed(range(one.length - 1)):
                one.token_rewards[at] += 0.5 * one.token_rewards[at + 1]
    return [one.reward if one.token_rewards is None else one.token_rewards for one in sequences]


def copied(sequences: Sequence[RewardedSequence]) -> list[Any]:
    given = [one.token_rewards for one in sequences]
    return in_place(
        [
            replace(one, token_rewards=None if rewards is None else rewards.copy())
            for one, rewards in zip(sequences, given, strict=True)
        ]
    )


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("my_estimators")
    module.__dict__.update(
        scaled=scaled,
        by_token=by_token,
        number=3,
        torn=torn,
        compared=compared,
        in_place=in_place,
        copied=copied,
        short=lambda sequences: [one.reward for one in sequences][:-1],
        infinite=lambda sequences: [float("inf") for _ in sequences],
        wide=lambda sequences: [[one.reward] * 7 for one in sequences],
    )
    monkeypatch.setitem(sys.modules, "my_estimators", module)
    load_estimator.cache_clear()
    return "my_estimators"


def test_an_estimator_of_your_own_is_taken_by_its_path(own: str) -> None:
    sequences = batch((1, 0))
    assert list(load_estimator(settings(f"{own}:scaled", scale=3.0))(sequences)) == [3, 0]
    found = load_estimator(settings(f"{own}:by_token", group_by="task+role", weight="sequence"))
    assert [np.asarray(one).tolist() for one in found(sequences)] == [[1, 1], [0, 0]]
    assert found.whole_batch, "nobody knows"
    given = replace(sequences[0], token_rewards=np.array([0.5, 1.0]))
    for _ in range(2):
        assert np.asarray(load_estimator(settings(f"{own}:copied"))([given])).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("short", "returned 3 for 4 sequences"),
        ("infinite", "must return finite numbers; it returned inf"),
        (
            "torn",
            r"tried it .* on a test batch of two groups: KeyError: .* at test_estimator\.py:[0-9]+ in torn",
        ),
        (
            "compared",
            r"tried it .* on one group alone: ValueError: one group at test_estimator\.py:[0-9]+ in compared",
        ),
        (
            "in_place",
            r"token rewards \(read-only: copy .*: ValueError: .* read-only at .*test_estimator\.py:[0-9]+ in in_place",
        ),
        ("missing", "module my_estimators has no 'missing'"),
    ],
)
def test_an_estimator_of_your_own_that_cannot_serve_is_refused_at_once(own: str, name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        load_estimator(settings(f"{own}:{name}"))


def test_what_an_estimator_returns_is_looked_at_every_time() -> None:
    later = Estimator("mine", lambda sequences: [float(one.reward / 0.5) for one in sequences], {}, False, True)
    assert list(later(batch((1, 0)))) == [2, 0]
    with pytest.raises(AdvantageError, match="must return finite numbers; it returned nan"):
        later(batch((float("nan"), 0)))


def test_what_an_estimator_raises_names_its_line() -> None:
    mine = Estimator("my_estimators:torn", torn, {}, False, True)
    with pytest.raises(AdvantageError, match=r"my_estimators:torn failed: KeyError: 2 at .*estimator\.py:\d+ in torn"):
        mine(batch((1, 0)))


# ----------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("trainer", "why"),
    [
        ({"advantage": {"use": "gpro"}}, "trainer.advantage: 'gpro' is not known; take one of grpo, "),
        (
            {"advantage": {"use": "grpo", "epz": 1}},
            "trainer.advantage, grpo: no option 'epz'; the options are eps, std$",
        ),
        ({"advantage": {"use": "grpo", "std": "mean"}}, 'std must be "sample" or "population", got \'mean\''),
        (
            {"advantage": {"use": "grpo", "group_by": "task"}},
            "group_by must not be set here; set trainer.group_by instead",
        ),
        ({"advantage": {"use": "gae"}, "group_by": "task+role"}, "trainer.group_by has no effect on the advantage gae"),
        ({"advantage": {"use": "reinforce_pp"}, "weight": "sequence"}, "trainer.weight has no effect"),
    ],
)
def test_a_recipe_that_names_what_is_not_there_is_refused_with_the_nearest(trainer: dict[str, Any], why: str) -> None:
    recipe = recipe_of(trainer)
    assert Recipe.from_json(recipe.to_json()) == recipe
    check_advantage(recipe, "solver")
    with pytest.raises(UsageError, match=why):
        check_advantage(recipe, "other")
    with pytest.raises(UsageError, match=why):
        check_names(recipe)


def recipe_of(trainer: dict[str, Any]) -> Recipe:
    """Two policies, the other one with keys of its own."""
    return sums_recipe(policies={"solver": {"path": "x"}, "other": {"path": "x", "trainer": trainer}})


# ------------------------------------------------------------------------------------------------------------- the page

PAGE = (Path(__file__).parents[2] / "docs" / "advantages.md").read_text()


def test_the_page_lists_every_estimator_with_its_parameters() -> None:
    rows = {row[1]: row[3] for line in PAGE.splitlines() if len(row := line.split("|")) == 6 and "`" in row[1]}
    assert {name.strip(" `") for name in rows} - {"use"} == set(ADVANTAGES)
    for name, function in ADVANTAGES.items():
        own = inspect.signature(function).parameters.keys() - COMPARISON - {"sequences"}
        assert all(f"`{one}`" in rows[f" `{name}` "] for one in own), name


def test_the_pages_estimator_works(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("my_page")
    exec(PAGE.partition("```python\n")[2].partition("```")[0], module.__dict__)  # noqa: S102 - ours
    monkeypatch.setitem(sys.modules, "my_page", module)
    found = load_estimator(settings("my_page:worst_as_baseline", scale=2.0))
    assert list(found(batch((1, 0, 0.5), (3, 3)))) == [2, 0, 1, 0, 0]
