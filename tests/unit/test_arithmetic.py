import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs.arithmetic import TIERS, Arithmetic
from headrace.envs.contract import GivesExamples, Problem, Split
from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.ops.preflight.table import check_names

SPLITS: tuple[Split, ...] = ("train", "held_out", "warm_start")


def prompts(env: Arithmetic, split: Split, count: int) -> list[str]:
    return [env.problem(split, index).prompt for index in range(count)]


def problem(answer: str) -> Problem:
    return Problem(task_id="", prompt="", answer=answer)


@pytest.mark.parametrize("tier", TIERS)
def test_no_problem_is_in_two_splits_and_none_comes_twice(tier: str) -> None:
    env = Arithmetic(1, [tier])
    drawn = {split: prompts(env, split, min(env.size(split), 4500)) for split in SPLITS}
    for split in SPLITS:
        assert len(set(drawn[split])) == len(drawn[split])
    pairs: tuple[tuple[Split, Split], ...] = (
        ("train", "held_out"),
        ("warm_start", "held_out"),
        ("train", "warm_start"),
    )
    for one, other in pairs:
        assert not set(drawn[one]) & set(drawn[other])
    assert len(drawn["held_out"]) >= 128


def value_of(prompt: str) -> Fraction:
    """Work the prompt out by other means than the generator's."""
    if "x" in prompt and prompt[-1] != "?":
        left, right = prompt.split("=")
        factor, added = left.split("x+")
        return Fraction(int(right) - int(added), int(factor))
    text = prompt.split("=")[1][:-1] if prompt[-1] == "?" else prompt[:-1]
    text = "".join(f"Fraction({part})" if part.isdigit() else part for part in _tokens(text))
    return Fraction(eval(text, {"Fraction": Fraction, "gcd": lambda a, b: math.gcd(int(a), int(b))}))  # noqa: S307 - ours


def _tokens(text: str) -> list[str]:
    for sign in "+-*/%(),":
        text = text.replace(sign, f" {sign} ")
    return text.split()


@pytest.mark.parametrize("tier", TIERS)
def test_answers_are_right(tier: str) -> None:
    env = Arithmetic(3, [tier])
    for drawn in (env.problem("train", index) for index in range(300)):
        assert value_of(drawn.prompt) == Fraction(drawn.answer), drawn


@pytest.mark.parametrize("tier", TIERS)
def test_every_worked_example_has_full_reward_and_comes_from_its_own_split(tier: str) -> None:
    env = Arithmetic(3, [tier])
    assert isinstance(env, GivesExamples)
    for index in range(50):
        example, drawn = env.example(index), env.problem("warm_start", index)
        assert example.prompt == drawn.prompt
        assert env.score(drawn, example.completion).reward == 1.0


def test_an_alphabet_that_lacks_what_is_asked_is_refused_before_anything_is_started() -> None:
    small = ['policies.solver.alphabet="0123456789+="']
    with pytest.raises(UsageError, match=r"^workflows\.sums: .* not in policies\.solver\.alphabet: add .*ab.* to it"):
        check_names(load_recipe("arithmetic", small))
    both = ['workflows.sums.workflow="solver_verifier"', 'workflows.sums.policies.verifier="solver"']
    check_names(load_recipe("arithmetic", [*small, *both]))


@given(st.text())
def test_no_text_makes_the_scorer_raise(text: str) -> None:
    env = Arithmetic(1)
    assert env.score(problem("7"), rf"\boxed{{{text}}}").reward in (0.0, 1.0)
    assert env.score(problem("7"), text).parts["boxed"] in (0.0, 1.0)


def test_an_instruction_is_part_of_the_prompt_but_not_of_the_identity() -> None:
    drawn = Arithmetic(1, instruction=" box it").problem("train", 0)
    assert drawn.prompt.endswith("? box it")
    assert drawn.task_id == Arithmetic(1).problem("train", 0).task_id


def test_tasks_limit_what_every_tier_trains_on_and_nothing_else() -> None:
    env, whole = Arithmetic(1, ["sum2", "gcd"], tasks=200), Arithmetic(1, ["sum2", "gcd"])
    assert env.size("train") == 400
    asked = prompts(env, "train", 800)
    assert len(set(asked)) == 400
    assert asked[:400] == asked[400:] == prompts(whole, "train", 400)
    assert not set(asked) & set(prompts(env, "held_out", 4000))
    for split in SPLITS[1:]:
        assert env.size(split) == whole.size(split)
        assert prompts(env, split, 700) == prompts(whole, split, 700)
    assert Arithmetic(1, ["gcd"], tasks=10**6).size("train") == Arithmetic(1, ["gcd"]).size("train")
    for wrong in (0, 2.5):
        with pytest.raises(ValueError, match=f"tasks, the number .*got {wrong}"):
            Arithmetic(1, tasks=wrong)  # type: ignore[arg-type]


def test_a_tier_that_there_is_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="no tier 'sum_1'; did you mean 'sum1'"):
        Arithmetic(1, ["sum_1"])
    with pytest.raises(ValueError, match="tiers must be a list"):
        Arithmetic(1, "sum1")
    with pytest.raises(ValueError, match="tiers must be a list"):
        Arithmetic(1, [])
