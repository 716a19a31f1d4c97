from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.envs.contract import GivesExamples, HasTiers
from headrace.envs.mixture import Mixture
from headrace.envs.payload import problem_from_json, problem_to_json
from headrace.envs.registry import load_environment
from headrace.infra.recipe.settings import Recipe
from headrace.producers.rollout.conclusions import build_workflow_spec

EASY = {"use": "arithmetic", "name": "easy", "tiers": ["sum1"], "tasks": 6, "weight": 3}
HARD = {"use": "arithmetic", "name": "hard", "tiers": ["sum2", "times"], "tasks": 5}


def mixture(*sources: dict[str, Any], **more: Any) -> Mixture:
    return Mixture(1, sources or (EASY, HARD), **more)


def names(env: Mixture, draws: int) -> list[str]:
    return [env.problem("train", index).tier for index in range(draws)]


def weighted(*weights: float) -> Mixture:
    return mixture(*({**EASY, "name": str(number), "weight": weight} for number, weight in enumerate(weights)))


def test_the_source_with_the_largest_deficit_is_drawn_and_the_first_listed_at_a_tie() -> None:
    # w = (1/2, 1/3, 1/6); deficits before draw 2: (0, 2/3, 1/3), before draw 3: (1/2, 0, 1/2), and so on
    assert names(weighted(3, 2, 1), 6) == ["0", "1", "0", "2", "1", "0"]


@pytest.mark.parametrize("weights", [(1, 1, 1), (0.7, 0.2, 0.1), (5, 1), (0.123, 0.877)])
def test_every_source_is_within_a_draw_of_its_share_at_any_moment(weights: tuple[float, ...]) -> None:
    drawn: Counter[str] = Counter()
    for draw, name in enumerate(names(weighted(*weights), 2500), start=1):
        drawn[name] += 1
        for number, weight in enumerate(weights):
            assert abs(drawn[str(number)] - weight / sum(weights) * draw) <= 1


def test_a_pass_asks_every_source_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    env = mixture()
    assert env.size("train") == 40  # 10 of the hard ones, every fourth draw; the easy ones come round five times
    asked = {env.problem("train", index).task_id for index in range(40)}
    assert Counter(task_id.partition("/")[0] for task_id in asked) == {"easy": 6, "hard": 10}
    for size in (None, 0):
        sized = type("Sized", (Judge,), {"size": lambda *_, found=size: found})
        monkeypatch.setattr("headrace.envs.arithmetic.Judge", sized, raising=False)
        assert mixture(EASY, {"use": "headrace.envs.arithmetic:Judge", "name": "judge"}).size("train") == size


def test_a_source_judges_its_own_problems_as_it_asked_them(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    lines = [{"problem": f"What is {n} and {n}?", "answer": 2 * n} for n in range(40)]
    file.write_text("\n".join(map(json.dumps, lines)))
    env = mixture(EASY, {"use": "jsonl", "path": str(file)})
    seen = set()
    for index in range(8):
        problem = problem_from_json(problem_to_json(env.problem("train", index)))
        seen.add(problem.tier)
        assert env.score(problem, f"\\boxed{{{problem.answer}}}").reward == 1
        assert env.score(problem, "\\boxed{-7}").reward == 0
    assert seen == {"easy", "jsonl"}
    assert not isinstance(env, GivesExamples)


class Judge:
    """Gives the highest reward only to the very problem that it asked."""

    name = "judge"

    def __init__(self, seed: int) -> None:
        self.asked = load_environment("arithmetic", seed, {}).problem("train", 0)

    def size(self, split: str) -> int:
        return 1

    def problem(self, split: str, index: int) -> Any:
        return self.asked

    def score(self, problem: Any, text: str) -> Any:
        assert problem == self.asked


def test_a_source_is_given_its_problem_without_what_the_mixture_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.envs.arithmetic.Judge", Judge, raising=False)
    env = mixture({"use": "headrace.envs.arithmetic:Judge", "name": "judge"})
    env.score(env.problem("train", 0), "")


@pytest.mark.parametrize("keys", [(), ("source_tier",), ("source_source_tier",)])
def test_a_source_may_be_a_mixture_or_keep_a_key_of_its_own_that_mixtures_use(
    monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    class Keeps(Judge):
        def __init__(self, seed: int) -> None:
            super().__init__(seed)
            self.asked = replace(self.asked, extra=dict.fromkeys(keys, "kept"))

    monkeypatch.setattr("headrace.envs.arithmetic.Judge", Keeps, raising=False)
    inner = {"use": "mixture", "name": "inner", "sources": [{"use": "headrace.envs.arithmetic:Judge", "name": "judge"}]}
    for env in (mixture(inner), mixture({"use": "mixture", "name": "outer", "sources": [inner]})):
        problem = problem_from_json(problem_to_json(env.problem("train", 0)))
        env.score(problem, "")
        assert all(problem.extra[key] == "kept" for key in keys)


def test_held_out_sets_of_a_source_keep_their_names(tmp_path: Path) -> None:
    for name, count in (("train", 20), ("old", 4), ("new", 3)):
        rows = [{"problem": f"{name} {n}", "answer": str(n)} for n in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    sets = {name: str(tmp_path / f"{name}.jsonl") for name in ("old", "new")}
    words = {"use": "dataset", "name": "words", "path": str(tmp_path / "train.jsonl"), "held_out": sets}
    env = mixture(words, EASY)
    problems = [env.problem("held_out", index) for index in range(40)]
    assert {one.tier for one in problems} == {"words/old", "words/new", "easy"}
    assert {one.tier for one in (env.problem("train", index) for index in range(20))} == {"words", "easy"}
    for one in problems:
        read = problem_from_json(problem_to_json(one))
        assert env.score(read, f"\\boxed{{{one.answer}}}").reward == 1


def test_the_sources_are_tiers_of_which_some_can_be_asked() -> None:
    env = mixture(tiers=["hard"])
    assert isinstance(env, HasTiers)
    assert (env.tiers(), env.asked(), set(names(env, 4))) == (("easy", "hard"), ("hard",), {"hard"})


def test_a_source_that_is_not_asked_scores_its_problems_all_the_same(tmp_path: Path) -> None:
    raised, narrowed = mixture(tiers=["hard"]).problem("train", 0), mixture(tiers=["easy"])
    for env in (narrowed, mixture(tiers=["easy"])):
        assert env.score(raised, f"\\boxed{{{raised.answer}}}").reward == 1
    assert (narrowed.asked(), narrowed.size("train"), set(names(narrowed, 8))) == (("easy",), 6, {"easy"})
    missing = {"use": "jsonl", "path": str(tmp_path / "missing.jsonl")}
    beside = mixture(EASY, missing, tiers=["easy"])
    assert beside.problem("train", 0).tier == "easy", "what is not asked is not read"
    with pytest.raises(ValueError, match=r"source jsonl: .*missing\.jsonl"):
        beside.prepare_tiers()


def test_a_raised_tier_is_read_before_the_first_score_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    monkeypatch.setattr(Mixture, "prepare_tiers", lambda _: built.append("all"))
    settings = {"sources": [EASY, HARD], "tiers": ["easy"]}
    workflow = {"env": {"use": "mixture", **settings}, "policies": {"solver": "p"}}
    for raise_tier, found in ((False, []), (True, ["all"])):
        recipe = Recipe.model_validate(
            {
                "name": "r",
                "policies": {"p": {"path": "x"}},
                "workflows": {"w": workflow},
                "feed": {"raise_tier": raise_tier},
            }
        )
        build_workflow_spec(recipe, "w")
        assert built == found


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sources": []}, "one or more tables"),
        ({"sources": ["arithmetic"]}, "source 1 must be a table with `use`"),
        ({"sources": [{"use": "arithmetic"}, {"use": "arithmetic"}]}, "tables with different names"),
        ({"sources": [{**EASY, "weight": 0}]}, "weight of source easy must be a number above 0; got 0"),
        ({"sources": [{**EASY, "weight": "3"}]}, "weight of source easy"),
        ({"sources": [{**EASY, "weight": 0.333333333}, {**HARD, "weight": 0.7}]}, "use simpler weights"),
        ({"sources": [EASY, {"use": "arithmetic", "name": "b", "tiers": ["sum_1"]}]}, "source b: .*no tier 'sum_1'"),
        ({"sources": [EASY], "tiers": ["harder"]}, "tiers must be a list of names of sources, from easy"),
    ],
)
def test_sources_that_cannot_be_mixed_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        load_environment("mixture", 1, settings)
