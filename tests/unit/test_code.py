"""Problems whose answer is a program, without a box: tests, worlds, and the workflow of a solver and a tester."""

from __future__ import annotations

import asyncio
import itertools
import json
from functools import reduce
from pathlib import Path
from random import Random
from typing import Any

import pytest
from test_workflows import Scripted

from headrace.envs.code import judge, worlds
from headrace.envs.code.cases import Cases, WrongTests, find_code, read_cases, read_references
from headrace.envs.code.grading import EACH, SOLUTIONS, TESTS
from headrace.envs.code.in_box import spell
from headrace.envs.code.programs import Programs
from headrace.envs.code.written_cases import read_written_cases
from headrace.envs.contract import Problem, Score, Split
from headrace.envs.registry import EnvironmentSettingsError, load_environment
from headrace.envs.sandbox.contract import BoxUnavailable
from headrace.envs.tools.outcomes import Limits
from headrace.envs.tools.solutions import SolvedCalls, play_solution
from headrace.envs.workflows.code_tests import check_environment, code_tests

SPLITS: tuple[Split, ...] = ("train", "held_out", "warm_start")


@pytest.fixture(autouse=True)
def _no_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "check_boxes", lambda: "unshare")


def test_tests_are_read_in_every_form_that_data_sets_have() -> None:
    function = Cases("f", [[1, 2]], [3])
    assert read_cases('{"inputs": [[1, 2]], "outputs": [3], "fn_name": "f"}') == function
    assert read_cases({"inputs": ["1\n2"], "outputs": ["3"], "fn_name": "f"}) == function
    assert read_cases('{"inputs": ["1 2"], "outputs": ["3\\n"]}') == Cases("", ["1 2"], ["3\n"])
    assert read_cases({"inputs": [["1", "2"]], "outputs": [[3, 4]]}) == Cases("", ["1\n2"], ["3\n4"])
    one = {"input": "1\n2", "output": "3", "testtype": "functional"}
    assert read_cases(json.dumps([{**one, "testtype": "stdin"}])) == Cases("", ["1\n2"], ["3"])
    assert read_cases([{**one, "metadata": {"func_name": "f"}}]) == read_cases([{**one, "fn_name": "f"}]) == function
    assert read_cases({"fn_name": "f", "inputs": [[nest(100)]], "outputs": [nest(100)]})
    for wrong in (
        "{",
        [],
        [one],
        {"fn_name": "f", "inputs": [[nest(101)]], "outputs": [3]},
        {"fn_name": "f", "inputs": [[1]], "outputs": [reduce(lambda inner, _: [inner], range(5000), 1)]},
        "[]",
        '{"inputs": []}',
        '{"inputs": [], "outputs": []}',
        '{"inputs": ["1"], "outputs": []}',
        7,
        {"fn_name": "f", "outputs": [3], "inputs": [3]},
    ):
        with pytest.raises(WrongTests, match="tests cannot be read"):
            read_cases(wrong)


def nest(depth: int) -> Any:
    return json.loads("[" * depth + "]" * depth)


def test_code_is_the_last_long_block_or_the_last_one_or_the_whole_text() -> None:
    long, short = "print(sum(map(int, input().split())))\n", "print(1)\n"
    assert find_code(f"First\n```python\n{short}```\nthen\n```py\n{long}```\nand\n```\n{short}```") == long
    assert find_code(f"```python\n{long}") == long
    assert find_code(f"First\n```\n1\n```\nthen\n```python\n{short}```") == short
    assert find_code("a+1") == "a+1"


def test_an_answer_is_compared_as_the_data_sets_compare_it() -> None:
    printed = Cases("", [""], ["1 2.50\nyes\n"])
    assert [printed.is_passed(0, one) for one in (" 1 2.5 \nyes", "1 2.50 yes", "1 2.5\nno", "1 2.5\nyes\n\n0")] == [
        True,
        False,
        False,
        False,
    ]
    for wanted, given, is_passed in (
        ([1, 2], (1, 2.0), True),
        (True, 1, True),
        ([5], 5, True),
        ("5", 5, False),
        ({"a": 1, "b": [2]}, {"b": (2,), "a": 1}, True),
        ([1, 2], {1, 2}, False),
    ):
        assert Cases("f", [[]], [wanted]).is_passed(0, spell(given)) == is_passed


def test_hidden_tests_tell_programs_with_one_wrong_step_from_the_right_one() -> None:
    draw, found, missed = Random(1), 0, 0  # noqa: S311
    for kind in worlds.KINDS.values():
        for words in list(itertools.permutations(kind.steps, worlds.STEPS))[::13]:
            inputs = [kind.draw(draw) for _ in range(150)]
            right = [_answer(kind, words, given) for given in inputs]
            for at, other in itertools.product(range(len(words)), set(kind.steps) - set(words)):
                mutant = [*words[:at], other, *words[at + 1 :]]
                is_told = [_answer(kind, mutant, given) != one for given, one in zip(inputs, right, strict=True)]
                if any(is_told):
                    found += 1
                    missed += not any(is_told[: worlds.SHOWN + worlds.HIDDEN])
    assert found > 100
    assert missed < 0.01 * found


def _answer(kind: worlds.Kind, words: Any, given: Any) -> Any:
    return worlds.run_function(worlds.write_function(kind, words), given)


def test_a_problem_is_the_same_for_ever_and_in_one_split_and_held_out_ones_for_every_seed() -> None:
    one, other = Programs(1, ("micro", "lists")), Programs(2, ("micro", "lists"))
    drawn = {split: [one.problem(split, at) for at in range(60)] for split in SPLITS}
    assert drawn["train"] == [Programs(1, ("micro", "lists")).problem("train", at) for at in range(60)]
    assert drawn["held_out"] == [other.problem("held_out", at) for at in range(60)]
    assert drawn["train"] != [other.problem("train", at) for at in range(60)]
    ids = [{problem.task_id for problem in drawn[split]} for split in SPLITS]
    assert not ids[0] & ids[1] | ids[0] & ids[2] | ids[1] & ids[2]
    assert {problem.tier for problem in drawn["train"]} == {"micro", "lists"}
    assert one.example(0).completion in one.problem("warm_start", 0).extra[SOLUTIONS]


def test_settings_that_cannot_be_used_and_a_machine_without_boxes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, said in (
        ({"tiers": ["micros"]}, "some of single, micro, numbers, texts, lists; got"),
        ({"tiers": ["lists"], "shows_cases": True}, "for the tiers single and micro alone"),
        ({"test_limit_s": 9}, "at most total_limit_s, a finite number; got 9 and 8"),
        ({"memory": 64}, "no limit 'memory'"),
        ({"tiers": 5}, "tiers must be a list of some of .*; got 5"),
        ({"tiers": [["micro"]]}, "tiers must be a list of some of "),
        ({"test_limit_s": "x"}, "test_limit_s must be a number, got 'x'"),
        ({"total_limit_s": float("inf")}, "a finite number; got 6.0 and inf"),
        ({"wall_s": 2}, "wall_s is no setting here: it follows total_limit_s"),
    ):
        with pytest.raises(EnvironmentSettingsError, match=said):
            load_environment("code", 1, settings)
    for train in ({}, "code"):
        with pytest.raises(EnvironmentSettingsError, match="train must be a table with `use`"):
            load_environment("human_eval", 1, {"train": train})

    def fail() -> str:
        raise BoxUnavailable("this machine has no boxes")

    monkeypatch.setattr(judge, "check_boxes", fail)
    for use, settings in (("code", {}), ("dataset", {"path": "x", "scorer": "code"})):
        with pytest.raises(EnvironmentSettingsError, match="this machine has no boxes"):
            load_environment(use, 1, settings)


def test_a_row_of_a_data_set_brings_its_tests(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"problem": "Add.", "input_output": "{}"}) + "\n")
    settings = {"path": str(tmp_path / "rows.jsonl"), "scorer": "code", "held_out": 0.0}
    problem = load_environment("dataset", 1, settings).problem("train", 0)
    assert problem.extra == {TESTS: "{}"}
    assert problem.text.endswith("one fenced block of Python 3: ```python")


# ------------------------------------------------------------------------------------------------ solver and tester


def test_cases_are_two_in_json_in_the_last_block_or_alone() -> None:
    two = Cases("f", [[2], [3]], [4, 9])
    objects = '[{"input": [2], "output": 4}, {"input": [3], "output": 9}]'
    assert read_written_cases(f"<analysis>[1]</analysis>\n```json\n{objects}\n```", "f") == two
    assert read_written_cases("[[2,4],[3,9]]", "f") == two
    assert read_written_cases("[[2,4],[3,9]]", "") == Cases("", ["2", "3"], ["4", "9"])
    for wrong in ("", "[[2,4]]", "[[2,4],[3,9],[4,16]]", "[[2,4],[3]]", "[2,3]", "7", '[{"input": 1}, {}]', "[" * 9999):
        assert read_written_cases(wrong, "f") is None, wrong
    for deep in (300, 700):
        assert read_written_cases(json.dumps([[2, 4], [3, nest(deep)]]), "f") is None


class Run:
    """Runs our own programs in this process, as `Programs` runs them in a box."""

    name = "run"

    def score(self, problem: Problem, text: str) -> Score:
        cases = read_cases(problem.extra[TESTS])
        values = [worlds.run_function(f"def f(a):return {text}", *given) for given in cases.inputs]
        passed = [cases.is_passed(at, spell(value)) for at, value in enumerate(values)]
        parts = {f"{EACH}{at}": one for at, one in enumerate(passed)} if EACH in problem.extra else {}
        return Score(all(passed), {"passed": sum(passed) / len(passed), **parts})


RIGHT, WRONG = "2*a", "a*a"  # equal for 0 and 2
TELLING, BLIND, FALSE, FALSE_BOTH = "[[1,2],[3,6]]", "[[0,0],[2,4]]", "[[0,0],[3,9]]", "[[0,7],[3,7]]"


@pytest.mark.parametrize(
    ("attempt", "cases", "solver", "tester", "attempts"),
    [
        (RIGHT, TELLING, [1.0], 1.0, 1),  # valid, and approves what is right
        (RIGHT, FALSE, [1.0], 0.0, 1),  # rejects what is right: no second attempt
        (RIGHT, "no json", [1.0], 0.0, 1),
        (WRONG, TELLING, [0.0, 1.0], 1.0, 2),  # valid, and rejects what is wrong
        (WRONG, BLIND, [0.0], 0.5, 1),  # valid, but approves what is wrong
        (WRONG, FALSE, [0.0], 0.0, 1),  # approves what is wrong, by a false case
        (WRONG, FALSE_BOTH, [0.0, 1.0], 0.0, 2),  # rejects what is wrong, by false cases: usable, not valid
        (WRONG, "no json", [0.0], 0.0, 1),
    ],
)
def test_each_outcome_has_the_rewards_of_version_3(
    attempt: str, cases: str, solver: list[float], tester: float, attempts: int
) -> None:
    tests = json.dumps({"inputs": [[-1], [1], [5]], "outputs": [-2, 2, 10], "fn_name": "f"})
    extra = {TESTS: tests, SOLUTIONS: ["a", RIGHT], "ask": "=", "told": " "}
    actors = {"solver": Spoken([attempt, RIGHT]), "tester": Spoken([cases])}

    episode = asyncio.run(code_tests(Problem("two", "double a ", extra=extra), Run(), actors))  # type: ignore[arg-type]

    played, tested = episode["solver"], episode["tester"]
    assert [sequence.reward for sequence in played.sequences] == solver
    assert (played.reward, played.parts["first"], played.parts["attempts"]) == (solver[-1], solver[0], attempts)
    assert (tested.reward, [sequence.reward for sequence in tested.sequences]) == (tester, [tester])
    assert actors["tester"].asked == [f"double a {attempt}="]
    assert [sequence.spans[-1].turn for sequence in played.sequences] == list(range(attempts))
    if attempts == 2:
        told = [(f"[[{one}], {two}] {verdict}\n") for one, two, verdict in _read_told(attempt, cases)]
        assert actors["solver"].asked == ["double a ", f"double a  {''.join(told)}"]


def _read_told(attempt: str, cases: str) -> list[tuple[int, int, str]]:
    is_right = {one: worlds.run_function(f"def f(a):return {attempt}", one) == two for one, two in json.loads(cases)}
    return [(one, two, "PASS" if is_right[one] else "FAIL") for one, two in json.loads(cases)]


class Spoken(Scripted):
    """Speaks every character, and has room for all."""

    context = 999

    def encode_plain(self, text: str) -> list[int]:
        return [ord(character) + 1000 for character in text]

    def decode(self, ids: Any, *, special_tokens: bool = False) -> str:
        return "".join(chr(one - 1000) for one in ids if one >= 1000)


def test_a_worked_solution_without_tools_is_scored_at_once() -> None:
    class Solved(Run):
        def solve(self, problem: Problem) -> list[str]:
            return list(problem.extra[SOLUTIONS])

    extra = {TESTS: '{"fn_name": "f", "inputs": [[3]], "outputs": [6]}'}
    for answer, reward, fault in (("a+a", 1, ""), ("a", 0, "its last answer, 'a', gets a reward of 0, not 1")):
        problem = Problem("two", "double a", extra={**extra, SOLUTIONS: [answer]})
        played = asyncio.run(play_solution(SolvedCalls(Solved(), Limits(1, 99)), problem))  # type: ignore[arg-type]
        assert (played.reward, played.prompt, played.fault) == (reward, "double a", fault)
        assert [turn.answer for turn in played.turns] == [answer]


def test_the_workflow_refuses_other_roles_and_problems_without_references() -> None:
    with pytest.raises(ValueError, match="needs the roles solver and tester"):
        asyncio.run(code_tests(Problem("x", "x"), Programs(1), {}))
    check_environment(Programs(1))
    lacking = Programs(1)
    lacking.problem = lambda split, index: Problem("x", "x", extra={TESTS: "{}"})  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="needs `solutions` in each problem's `extra`"):
        check_environment(lacking)


def test_references_are_a_list_of_texts_or_json_of_one_and_nothing_else_is_played() -> None:
    assert read_references(["a", "b"]) == read_references('["a", "b"]') == ["a", "b"]
    for wrong in ([], "[]", "print(input())", [1], None, "[" * 9999):
        extra = {TESTS: {"fn_name": "f", "inputs": [[1]], "outputs": [1]}, SOLUTIONS: wrong}
        with pytest.raises(WrongTests, match="`solutions` must be a list of one program or more"):
            asyncio.run(code_tests(Problem("x", "x", extra=extra), Run(), {"solver": Spoken([]), "tester": Spoken([])}))  # type: ignore[arg-type]
