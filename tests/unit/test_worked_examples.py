"""What may teach a policy before its first version, looked at before anything starts."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made_recipes import sums_recipe

from headrace.envs.contract import WorkedExample
from headrace.infra.errors import UsageError
from headrace.producers.feed.worked_examples import _write_lines, read_first_example
from headrace.trainers.learner.warm_start import PromptAndCompletion

RECIPE = sums_recipe(policies={"solver": {"path": "x", "warm_start": {}}})


def environment(found: Any) -> Any:
    def example(_: int) -> Any:
        if isinstance(found, Exception):
            raise found
        return found

    return SimpleNamespace(example=example)


def first(found: Any) -> WorkedExample:
    return read_first_example(RECIPE, "solver", {"sums": environment(found)})


def test_a_worked_example_may_ask_by_messages() -> None:
    asked = WorkedExample(({"role": "system", "content": "add"}, {"role": "user", "content": "2+3?"}), "5")
    assert first(asked) is asked
    [line] = _write_lines(environment(asked), 1)
    assert json.loads(line) == {"prompt": list(asked.prompt), "completion": "5"}


def test_a_worked_example_may_have_arguments_for_the_chat_template() -> None:
    [line] = _write_lines(environment(WorkedExample("2+3?", "5", {"enable_thinking": False})), 1)
    assert PromptAndCompletion(**json.loads(line)) == PromptAndCompletion("2+3?", "5", {"enable_thinking": False})


def test_what_is_no_worked_example_is_refused_before_anything_starts() -> None:
    with pytest.raises(UsageError, match=r"must return a\s+WorkedExample, got tuple"):
        first(("2+3?", "5"))
    with pytest.raises(
        UsageError, match=r"the environment failed to build the first example: LookupError: no such row at "
    ):
        first(LookupError("no such row"))
    with pytest.raises(TypeError, match=r"WorkedExample\.completion must be a string, got "):
        WorkedExample("2+3?", cast("Any", 5))
    with pytest.raises(TypeError, match=r"WorkedExample\.prompt\[0\] must be a dict with a `role`"):
        WorkedExample(cast("Any", ["2+3?"]), "5")
