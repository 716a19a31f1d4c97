"""Answers judged by math-verify: only where it is asked for, and only those that are not the same text."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from headrace.envs import math_judge
from headrace.envs.contract import Problem
from headrace.envs.data import scorers
from headrace.envs.jsonl import JsonLines


def a_file(folder: Path) -> str:
    lines = [json.dumps({"problem": f"p{number}", "answer": "x"}) for number in range(20)]
    (folder / "tasks.jsonl").write_text("\n".join(lines))
    return str(folder / "tasks.jsonl")


def test_exact_comparison_is_the_default_and_the_extra_is_named_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = JsonLines(1, a_file(tmp_path))
    assert exact.score(exact.problem("train", 0), r"\boxed{X}").reward == 0
    with pytest.raises(ValueError, match="compare must be one of exact, math_verify; got 'sympy'"):
        JsonLines(1, a_file(tmp_path), compare="sympy")  # type: ignore[arg-type]  # the test's point
    monkeypatch.setattr(math_judge, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"make install EXTRAS=math"):
        JsonLines(1, a_file(tmp_path), compare="math_verify")


def test_what_is_not_the_same_text_goes_to_math_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_judge, "find_spec", lambda _: True)
    monkeypatch.setattr(scorers, "is_equal", lambda given, gold: given.lower() == gold)
    env = JsonLines(1, a_file(tmp_path), compare="math_verify")
    problem = env.problem("train", 0)
    rewards = [env.score(problem, text).reward for text in (r"\boxed{x}", r"\boxed{X}", r"\boxed{y}", "x")]
    assert rewards == [1, 1, 0, 0]


def test_of_two_numbers_exact_arithmetic_decides_and_of_a_percentage_math_verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(math_judge, "find_spec", lambda _: True)
    monkeypatch.setattr(scorers, "is_equal", lambda _given, _gold: True)
    env = JsonLines(1, a_file(tmp_path), compare="math_verify")
    for given, gold, reward in (
        ("3/2", "2 1/2", 0),
        ("0.0000001", "0.0000002", 0),
        ("2.5", "2 1/2", 1),
        ("0.1", r"10\%", 1),
        ("x=2", "2", 1),
    ):
        assert env.score(Problem("t", "p", gold), rf"\boxed{{{given}}}").reward == reward, (given, gold)


@pytest.mark.skipif(find_spec("math_verify") is None, reason="math-verify is not installed")
def test_math_verify_itself_takes_the_same_mathematics_for_the_same() -> None:
    assert math_judge.is_equal(r"\frac{2}{4}", "0.5")
    assert math_judge.is_equal("x=2", "2")
    assert not math_judge.is_equal("3", "2")
