import importlib.util
import json
import sys
from typing import Any

import pytest

from headrace.envs.contract import GivesExamples, Split
from headrace.envs.payload import problem_from_json, problem_to_json
from headrace.envs.reasoning_gym_env import ReasoningGym

needs_library = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="the optional extra reasoning-gym is not installed"
)
SPLITS: tuple[Split, ...] = ("train", "held_out", "warm_start")


def test_a_missing_library_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ValueError, match="make install EXTRAS=reasoning-gym"):
        ReasoningGym(1, "gcd")


@needs_library
def test_the_same_index_is_the_same_problem_for_ever() -> None:
    one, again = ReasoningGym(1, "chain_sum"), ReasoningGym(1, "chain_sum")
    for split in SPLITS:
        assert [one.problem(split, i) for i in range(5)] == [again.problem(split, i) for i in range(5)]
    other = ReasoningGym(2, "chain_sum")
    assert [other.problem("train", i) for i in range(5)] != [one.problem("train", i) for i in range(5)]
    assert [other.problem("held_out", i) for i in range(5)] == [one.problem("held_out", i) for i in range(5)]


@needs_library
@pytest.mark.parametrize("dataset", ["chain_sum", "gcd", "simple_equations", "leg_counting", "maze", "countdown"])
def test_the_librarys_own_answer_has_full_reward_and_nonsense_none(dataset: str) -> None:
    env = ReasoningGym(1, dataset)
    assert isinstance(env, GivesExamples)
    for index in range(3):
        problem, example = env.problem("warm_start", index), env.example(index)
        assert env.score(problem, example.completion).reward == 1.0
        assert env.score(problem, problem.answer).reward == 1.0
        for text in ("", "nonsense", r"\boxed{}", r"\boxed{"):
            assert env.score(problem, text).reward == 0.0


@needs_library
def test_partial_credit_is_given_only_when_asked_for() -> None:
    strict, lenient = ReasoningGym(1, "gcd"), ReasoningGym(1, "gcd", partial_credit=True)
    problem = strict.problem("train", 0)
    wrong = rf"\boxed{{{int(problem.answer) + 1}00}}"
    marks = strict.score(problem, wrong).parts["marks"]
    assert strict.score(problem, wrong).reward == 0.0
    assert lenient.score(problem, wrong).reward == marks < 0.999
    # The default scorer gives marks for the right answer amid other words.
    amid = f"it is {problem.answer}"
    assert strict.score(problem, amid).reward == 0.0
    assert 0 < lenient.score(problem, amid).reward < 1


@needs_library
def test_a_problem_is_plain_json_and_can_be_judged_by_another_process() -> None:
    env = ReasoningGym(1, "countdown")
    problem = env.problem("train", 3)
    assert json.loads(json.dumps(dict(problem.extra))) == problem.extra
    carried = problem_from_json(problem_to_json(problem))
    assert ReasoningGym(1, "countdown").score(carried, rf"\boxed{{{problem.answer}}}").reward == 1.0


@needs_library
def test_a_scorer_that_raises_gives_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    env = ReasoningGym(1, "gcd")

    def broken(answer: str, entry: object) -> float:
        raise ZeroDivisionError

    monkeypatch.setattr(env._dataset, "score_answer", broken)
    assert env.score(env.problem("train", 0), "7").reward == 0.0


@needs_library
def test_a_dataset_that_there_is_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no dataset 'chain_sums'; nearest of .*: chain_sum"):
        ReasoningGym(1, "chain_sums")


@needs_library
@pytest.mark.parametrize("config", [{"min_term": 2}, {"min_terms": -1}, {"size": 10}])
def test_settings_that_the_dataset_refuses_are_said(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"reasoning_gym:chain_sum refuses its settings"):
        ReasoningGym(1, "chain_sum", **config)
