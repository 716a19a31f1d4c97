from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs.contract import Problem
from headrace.envs.payload import PayloadError, problem_from_json, problem_to_json

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.text(), st.text(), st.text(), st.text(), st.dictionaries(st.text(), PLAIN, max_size=3))
def test_what_the_feeder_drew_is_what_the_worker_plays(
    task_id: str, prompt: str, answer: str, tier: str, extra: dict[str, object]
) -> None:
    problem = Problem(task_id, prompt, answer, tier, extra)
    text = problem_to_json(problem)
    assert problem_from_json(text) == problem
    text.encode()


def test_messages_tools_and_template_arguments_travel_and_a_text_problem_is_written_as_it_always_was() -> None:
    rules, call = (
        {"role": "system", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]},
    )
    problem = Problem("p", (rules, call), tools=({"name": "add"},), template_arguments={"enable_thinking": False})
    assert problem_from_json(problem_to_json(problem)) == problem
    assert problem.prompt == (rules, {**call, "content": ""})
    assert problem_to_json(Problem("t", "12", tools=())) == (
        '{"answer": "", "extra": {}, "prompt": "12", "task_id": "t", "tier": ""}'
    ), "workers of older builds read it"
    with pytest.raises(PayloadError, match=r"Problem.prompt\[0\] must be a dict with a `role`"):
        problem_from_json('{"task_id": "a", "prompt": [{"role": "robot", "content": ""}]}')


def test_a_problem_that_is_no_plain_json_is_refused_by_name() -> None:
    with pytest.raises(PayloadError, match="problem 'p1' cannot be written as JSON"):
        problem_to_json(Problem("p1", "?", extra={"gold": object()}))
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for gold in (float("nan"), np.float32("nan"), deep):
        with pytest.raises(PayloadError, match="p2"):
            problem_to_json(Problem("p2", "?", extra={"gold": gold}))


def test_numbers_and_arrays_of_numpy_travel_as_numbers_and_lists() -> None:
    problem = Problem("p", "?", extra={"gold": np.float32(0.5), "count": np.int64(3), "grid": np.eye(2, dtype=int)})
    assert problem_from_json(problem_to_json(problem)).extra == {"gold": 0.5, "count": 3, "grid": [[1, 0], [0, 1]]}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"task_id": "a"}', '{"task_id": "a", "prompt": 3}', "{'a'}"])
def test_a_payload_that_holds_no_problem_is_refused(text: str) -> None:
    with pytest.raises(PayloadError):
        problem_from_json(text)
