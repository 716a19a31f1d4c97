from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.envs.contract import Problem
from headrace.envs.judged_arithmetic import JudgedArithmetic
from headrace.envs.registry import (
    ENVIRONMENTS,
    WORKFLOWS,
    EnvironmentSettingsError,
    UnknownEnvironment,
    check_characters,
    check_first_problem,
    load_environment,
    load_workflow,
)
from headrace.infra.recipe.recipe_file import list_shipped_recipes, load_recipe

MY_WORLDS = """
class Mine:
    def __init__(self, seed, depth=1):
        self.name = f"mine {seed} {depth}"
    size = problem = score = lambda self, *_: None


async def play(problem, env, actors):
    return {}


def not_async(problem, env, actors):
    return {}

class Seedless:
    def __init__(self):
        self.name = "seedless"
"""


def test_one_of_your_own_is_named_by_module_and_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_worlds.py").write_text(MY_WORLDS)
    monkeypatch.syspath_prepend(tmp_path)
    assert load_environment("my_worlds:Mine", 3, {"depth": 2}).name == "mine 3 2"
    assert load_workflow("my_worlds:play").__name__ == "play"
    with pytest.raises(UnknownEnvironment, match=r"module my_worlds has no 'Yours' \(.*my_worlds\.py\)"):
        load_environment("my_worlds:Yours", 3, {})
    with pytest.raises(UnknownEnvironment, match="not_async must be an async function"):
        load_workflow("my_worlds:not_async")
    with pytest.raises(EnvironmentSettingsError, match="unexpected keyword argument 'dept'; the settings are depth"):
        load_environment("my_worlds:Mine", 3, {"dept": 2})
    with pytest.raises(
        EnvironmentSettingsError, match="seed is no setting of an environment: it gets the recipe's seed"
    ):
        load_environment("my_worlds:Mine", 3, {"seed": 2})
    with pytest.raises(EnvironmentSettingsError, match="Seedless: its constructor must take the argument seed"):
        load_environment("my_worlds:Seedless", 3, {})


def test_every_shipped_workflow_is_in_a_shipped_recipe() -> None:
    recipes = (load_recipe(name) for name in list_shipped_recipes())

    assert {workflow.workflow.use for recipe in recipes for workflow in recipe.workflows.values()} == set(WORKFLOWS)


def test_worked_examples_of_the_judged_sums_are_of_both_roles_with_a_right_answer_and_a_wrong_one() -> None:
    env = JudgedArithmetic(1, ("sum1",))

    solved, right, again, wrong = (env.example(index) for index in range(4))

    for index, (answer, judged, word) in enumerate(((solved, right, "approve"), (again, wrong, "reject"))):
        problem = env.problem("warm_start", index)
        assert answer.prompt == problem.prompt + ("" if index == 0 else " reject "), "as the workflow asks again"
        assert env.score(problem, answer.completion).reward == 1
        candidate = judged.prompt.removeprefix(problem.prompt).removesuffix(" approve or reject? ").strip()
        assert env.score(problem, candidate).reward == float(word == "approve")
        assert judged.completion == word


def test_an_unknown_name_lists_what_there_is_the_nearest_first() -> None:
    with pytest.raises(UnknownEnvironment, match="environment: 'arithmetics' is not known; take one of arithmetic, "):
        load_environment("arithmetics", 1, {})
    with pytest.raises(
        UnknownEnvironment, match="workflow: 'solver_verify' is not known; take one of solver_verifier, "
    ):
        load_workflow("solver_verify")
    for name in ENVIRONMENTS:
        with pytest.raises(UnknownEnvironment, match=name):
            load_environment("", 1, {})


def test_settings_that_an_environment_does_not_take_are_said() -> None:
    with pytest.raises(EnvironmentSettingsError, match="'tier'; the settings are tiers, "):
        load_environment("arithmetic", 1, {"tier": "sum1"})
    with pytest.raises(
        EnvironmentSettingsError, match="unexpected keyword argument 'sytem'; the settings are system, "
    ):
        load_environment("dataset", 1, {"path": "a.jsonl", "sytem": "x"})
    with pytest.raises(
        EnvironmentSettingsError, match=r"^environment dataset: scorer: 'numerc' is not .*module:name`$"
    ):
        load_environment("dataset", 1, {"path": "a.jsonl", "scorer": "numerc"})
    with pytest.raises(EnvironmentSettingsError, match=r"arithmetic: .*no tier 'sum_1'"):
        load_environment("arithmetic", 1, {"tiers": ["sum_1"]})
    with pytest.raises(EnvironmentSettingsError, match="jsonl: missing a required argument: 'path'"):
        load_environment("jsonl", 1, {})
    with pytest.raises(EnvironmentSettingsError, match="jsonl: "):
        load_environment("jsonl", 1, {"path": 7})


WRONG_WORLDS = """
import sys
from headrace.envs.contract import Problem

class Right:
    name = "right"
    def __init__(self, seed): pass
    def size(self, split): return 3
    def problem(self, split, index): return Problem("t", "1+1=")
    def score(self, problem, text): return 1

class Nameless(Right): name = None
class Numbered(Right): name = 5
class Unjudged(Right): score = None
class Awaited(Right):
    async def score(self, problem, text): return 1
class Missing(Right):
    def __init__(self, seed): {}["data"]
class Ended(Right):
    def __init__(self, seed): sys.exit("no licence")
class Away(Right):
    def __init__(self, seed): raise ConnectionRefusedError
class Share(Right):
    def size(self, split): return 3.0
class Negative(Right):
    def size(self, split): return -1
class Mapped(Right):
    def problem(self, split, index): return {"prompt": "1+1="}
class Nothing(Right):
    def problem(self, split, index): pass
class Lacking(Right):
    def problem(self, split, index): return {}["question"]
class Unplain(Right):
    def problem(self, split, index): return Problem("t", "1+1=", extra={"tests": {1, 2}})
class Empty(Right):
    def size(self, split): return 0

def nothing(seed): pass
"""


def test_what_is_no_environment_is_refused_in_a_sentence_that_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrong_worlds.py").write_text(WRONG_WORLDS)
    monkeypatch.syspath_prepend(tmp_path)
    for name, why in {
        "Nameless": "`name` must be a non-empty string.* got NoneType None: write `name =",
        "Numbered": "`name` must be a non-empty string.* got int 5",
        "Unjudged": "has no method `score`; an environment has size, problem, score and a `name`",
        "Awaited": "`score` must not be async: make it a plain function",
        "Missing": r"KeyError: 'data' at wrong_worlds\.py:\d+ in __init__",
        "Ended": r"SystemExit: no licence at wrong_worlds\.py",
        "nothing": "NoneType None has no method `size`",
    }.items():
        with pytest.raises(EnvironmentSettingsError, match=f"^environment wrong_worlds:{name}: .*{why}"):
            load_environment(f"wrong_worlds:{name}", 1, {})
    with pytest.raises(ConnectionRefusedError):
        load_environment("wrong_worlds:Away", 1, {})
    for name, why in {
        "Share": "`size` must return the number of problems, or None if they never end; got float 3.0",
        "Negative": "`size` must return .* got int -1",
        "Mapped": r"`problem` must return a Problem of headrace\.envs\.contract; problem\('train', 0\) returned dict",
        "Nothing": "`problem` must return .* returned NoneType None",
        "Unplain": "problem 't' cannot be written as JSON .*type set",
        "Lacking": r"cannot give its first problem: KeyError: 'question' at wrong_worlds\.py:\d+ in problem",
    }.items():
        with pytest.raises(ValueError, match=f"^environment right.*{why}"):
            check_first_problem(load_environment(f"wrong_worlds:{name}", 1, {}))
    for name in ("Right", "Empty"):
        check_first_problem(load_environment(f"wrong_worlds:{name}", 1, {}))


def test_an_alphabet_is_held_against_what_each_message_says_and_nothing_between_them() -> None:
    asked = Problem("1", [{"role": "system", "content": "ab"}, {"role": "user", "content": "c"}])
    environment: Any = SimpleNamespace(name="own", size=lambda _: 1, problem=lambda *_: asked)
    check_characters(environment, "solver", "abc")
    with pytest.raises(ValueError, match=r"not in policies\.solver\.alphabet: add 'b' to it\. The first problem"):
        check_characters(environment, "solver", "ac")


def test_a_workflow_has_settings_and_without_them_is_written_as_earlier_builds_read_it() -> None:
    with_settings = load_recipe("tools", ["workflows.sums.workflow.max_turns=3"]).workflows["sums"]
    assert with_settings.model_dump()["workflow"] == {"use": "tools", "max_turns": 3, "observation_chars": 16}
    assert load_recipe("arithmetic").workflows["sums"].model_dump()["workflow"] == "single_turn"
    with pytest.raises(ValueError, match="workflow tools: no option 'max_turn'"):
        load_workflow("tools", {"max_turn": 3})
