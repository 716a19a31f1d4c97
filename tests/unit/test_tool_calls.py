"""Tool calls of generated text; what cannot be read is a value that a workflow can answer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.envs.tool_calls import InvalidToolCall, ToolCall, parse_tool_calls

ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "add"}}, {"name": "sub"}]


def test_calls_are_read_in_order_from_the_text_around_them() -> None:
    text = f"First {ADD} and <tool_call>" + '{"name": "sub", "arguments": "{\\"b\\": 2}"}</tool_call>'
    assert parse_tool_calls(text, TOOLS) == [ToolCall("add", {"a": 1}), ToolCall("sub", {"b": 2})]
    assert parse_tool_calls('<tool_call>{"name": "now"}</tool_call>') == [ToolCall("now", {})]
    assert parse_tool_calls("no call") == []


@pytest.mark.parametrize("held", ["</tool_call>", "<tool_call>", "<think>", "</think>", ADD])
def test_marks_within_the_json_of_a_call_are_its_text(held: str) -> None:
    call = f"<tool_call>{json.dumps({'name': 'sub', 'parameters': {'text': held}})}</tool_call>"
    assert parse_tool_calls(f"{ADD}{call}\n{ADD}", TOOLS) == [
        ToolCall("add", {"a": 1}), ToolCall("sub", {"text": held}), ToolCall("add", {"a": 1})
    ]  # fmt: skip
    assert parse_tool_calls(f"<think>{call}</think>{ADD}") == [ToolCall("add", {"a": 1})]


def test_what_a_policy_thinks_calls_nothing() -> None:
    for text in (
        f"<think>{ADD}</think>",
        f"{ADD}</think>",
        f"<think>{ADD}",
        f"thought</think><think>{ADD}</think>",
    ):
        assert parse_tool_calls(text) == [], text
    assert parse_tool_calls(f"<think>hm</think>{ADD}") == parse_tool_calls(f"hm</think>{ADD}")
    assert len(parse_tool_calls(f"{ADD}<think>hm</think>")) == 1


def test_a_thought_that_the_prompt_began_and_that_was_cut_off_calls_nothing() -> None:
    for text in (ADD, f"a literal <think> and {ADD}", f"{ADD} <think> {ADD}"):
        assert parse_tool_calls(text, is_thinking=True) == [], text
    assert len(parse_tool_calls(f"{ADD}</think>{ADD}", is_thinking=True)) == 1


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        (r'{"name": "\ud83d"}', "half of a character"),
        (r'{"name": "add", "arguments": {"a": ["\ud83d"]}}', "half of a character"),
        (r'{"name": "add", "arguments": "{\"a\": \"\\ud83d\"}"}', "half of a character"),
        ("{'name': 'add'}", "the tool call is not JSON: "),
        ("[1]", "this one has no name"),
        ('{"arguments": {}}', "this one has no name"),
        ('{"name": "add", "arguments": [1]}', "the arguments of add must be a JSON object"),
        ('{"name": "mul", "arguments": {}}', "there is no tool mul; the tools are add, sub"),
    ],
)
def test_a_call_that_cannot_be_read_says_why(inner: str, said: str) -> None:
    [found] = parse_tool_calls(f"<tool_call>{inner}</tool_call>", TOOLS)
    assert isinstance(found, InvalidToolCall)
    assert said in found.error
    assert found.error.encode()
    assert found.text == inner


def test_a_call_that_was_cut_off_is_invalid_and_hides_no_other() -> None:
    cut, whole = parse_tool_calls(f'<tool_call>{{"name": "ad{ADD}')
    assert cut == InvalidToolCall("the tool call is not closed by </tool_call>", '{"name": "ad')
    assert whole == ToolCall("add", {"a": 1})


@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "<think>", "</think>", "{", "}", "a"])).map("".join))
def test_no_text_makes_it_raise(text: str) -> None:
    for found in parse_tool_calls(text):
        assert isinstance(found, ToolCall | InvalidToolCall)
