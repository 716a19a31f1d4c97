"""Answers judged by math-verify: in processes of their own, within a time limit, and only where it is asked for."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from headrace.envs import math_judge
from headrace.envs.contract import Problem
from headrace.envs.jsonl import JsonLines
from headrace.envs.judge_processes import JudgeBroken, JudgeProcesses
from headrace.envs.math_judge import open_math_judge

CHILD = """
import json, sys, time
for line in sys.stdin:
    given, gold = json.loads(line)
    if given == "slow":
        time.sleep(600)
    if given == "dead":
        sys.exit(1)
    print(json.dumps(given.lower() == gold), flush=True)
"""
JUDGES = (sys.executable, "-c", CHILD)


def a_file(folder: Path) -> str:
    lines = [json.dumps({"problem": f"p{number}", "answer": "x"}) for number in range(20)]
    (folder / "tasks.jsonl").write_text("\n".join(lines))
    return str(folder / "tasks.jsonl")


def test_a_child_that_is_slow_or_dies_counts_as_another_answer_and_the_next_one_is_asked() -> None:
    judge = JudgeProcesses(JUDGES, limit_s=2.0, processes=1)
    assert judge.is_same("X", "x")
    began = time.monotonic()
    assert not judge.is_same("slow", "slow")
    assert time.monotonic() - began < 120
    assert judge.is_same("X", "x")
    assert not judge.is_same("dead", "dead")
    assert judge.is_same("X", "x")
    assert not judge.is_same("Y", "x")


def test_a_judge_that_cannot_start_is_an_error_and_no_verdict() -> None:
    broken = JudgeProcesses((sys.executable, "-c", "raise ImportError('Unsupported ANTLR version')"))
    for _ in range(2):
        with pytest.raises(JudgeBroken, match=r"python.* exits with status 1: ImportError: Unsupported ANTLR version"):
            broken.is_same("x=2", "2")
    absent = JudgeProcesses((sys.executable, "-c", "import time; time.sleep(60)"), first_limit_s=0.1)
    with pytest.raises(JudgeBroken, match=r"gives no answer within 0\.1 s"):
        absent.is_same("x=2", "2")
    assert not JudgeProcesses(JUDGES).is_same("dead", "dead"), "the question is at fault, also if it is the first"


def test_the_answer_to_a_question_that_was_interrupted_meets_no_other_question(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = JudgeProcesses(JUDGES, processes=1)
    assert judge.is_same("X", "x")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("headrace.envs.judge_processes.select.poll", interrupt)
        with pytest.raises(KeyboardInterrupt):
            judge.is_same("Y", "x")
    assert judge.is_same("X", "x"), "and not the answer of before, which is no"


def test_a_judge_answers_also_in_a_process_with_thousands_of_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        assert JudgeProcesses(JUDGES).is_same("X", "x")
    finally:
        for number in held:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_threads_may_ask() -> None:
    judge, found = JudgeProcesses(JUDGES, processes=2), list[bool]()
    threads = [threading.Thread(target=lambda: found.append(judge.is_same("X", "x"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [True] * 8


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
    monkeypatch.setattr("headrace.envs.data.scorers.open_math_judge", lambda: JudgeProcesses(JUDGES))
    env = JsonLines(1, a_file(tmp_path), compare="math_verify")
    problem = env.problem("train", 0)
    rewards = [env.score(problem, text).reward for text in (r"\boxed{x}", r"\boxed{X}", r"\boxed{y}", "x")]
    assert rewards == [1, 1, 0, 0]


def test_of_two_numbers_exact_arithmetic_decides_and_of_a_percentage_math_verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says_yes = "import sys\nfor _ in sys.stdin: print('true', flush=True)"
    monkeypatch.setattr(math_judge, "find_spec", lambda _: True)
    monkeypatch.setattr(
        "headrace.envs.data.scorers.open_math_judge", lambda: JudgeProcesses((sys.executable, "-c", says_yes))
    )
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
    judge = open_math_judge()
    assert judge.is_same(r"\frac{2}{4}", "0.5")
    assert judge.is_same("x=2", "2")
    assert not judge.is_same("3", "2")
