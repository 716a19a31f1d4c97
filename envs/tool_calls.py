"""Parses tool calls in generated text, in the form of Hermes and Qwen: `<tool_call>{"name": …}</tool_call>`.

An unreadable call is returned as a value too, so that a workflow can answer it like other calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.envs.contract import tool_name
from headrace.envs.thoughts import find_outside, find_thoughts

_DECODER = json.JSONDecoder()
_OPENING = re.compile(r"<tool_call>\s*")
_BLOCK = re.compile(r"<tool_call>(.*?)(</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class InvalidToolCall:
    """A malformed tool call."""

    error: str
    """The error, in words for the policy."""
    text: str
    """The text between the tags."""
    is_unknown: bool = False
    """Whether it names a tool that does not exist."""


def parse_tool_calls(
    text: str, tools: Sequence[Mapping[str, Any]] = (), *, is_thinking: bool = False
) -> list[ToolCall | InvalidToolCall]:
    """Return the calls of a generated text in order; calls inside `<think>` are ignored. Never raises.

    Args:
        text: The generated text.
        tools: JSON schemas; a call with another name is invalid. Without schemas, every name is valid.
        is_thinking: Whether the prompt ends with `<think>`. Then the whole text is thought if no `</think>` follows, as
        in a truncated answer.
    """
    names = [tool_name(tool) for tool in tools]
    shown = _blank_out_json(text)
    thoughts = find_thoughts(shown, is_thinking=is_thinking)
    blocks = find_outside(_BLOCK, shown, thoughts)
    return [_read_call(text[slice(*found.span(1))], found[2], names) for found in blocks]


def _blank_out_json(text: str) -> str:
    """Return a text of the same length, with blanks for the JSON of calls: marks in its strings are no marks."""
    parts, at = [], 0
    for opening in _OPENING.finditer(text):
        if opening.start() < at:
            continue
        try:
            _, end = _DECODER.raw_decode(text, opening.end())
        except (ValueError, RecursionError):
            continue
        parts += [text[at : opening.end()], " " * (end - opening.end())]
        at = end
    return "".join([*parts, text[at:]])


def _read_call(block: str, end: str, names: Sequence[str]) -> ToolCall | InvalidToolCall:
    inner = block.strip()
    if not end:
        return InvalidToolCall("the tool call is not closed by </tool_call>", inner)
    try:
        found = json.loads(inner)
        arguments = found.get("arguments", found.get("parameters", {})) if isinstance(found, dict) else None
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        json.dumps([found, arguments], ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        why = "it holds half of a character" if isinstance(error, UnicodeEncodeError) else error
        return InvalidToolCall(f"the tool call is not JSON: {why}", inner)
    if not isinstance(found, dict) or not isinstance(name := found.get("name"), str):
        return InvalidToolCall('a tool call is {"name": ..., "arguments": {...}}, and this one has no name', inner)
    if not isinstance(arguments, dict):
        return InvalidToolCall(f"the arguments of {name} must be a JSON object", inner)
    if names and name not in names:
        return InvalidToolCall(f"there is no tool {name}; the tools are {', '.join(names)}", inner, is_unknown=True)
    return ToolCall(name, arguments)
