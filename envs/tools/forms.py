"""The two forms in which a policy writes calls and reads results: Hermes, and a short one without a chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from headrace.envs.contract import Actor, Problem
from headrace.envs.messages import Message, as_messages
from headrace.envs.thoughts import find_outside, find_thoughts
from headrace.envs.tool_calls import InvalidToolCall, ToolCall
from headrace.envs.tools.functions import BadArguments, Tool
from headrace.envs.tools.outcomes import Outcome
from headrace.infra.weights.prompt_tokens import CannotEncode, NoChatTemplate

AUTO, HERMES, SHORT = "auto", "hermes", "short"
CALLS = (AUTO, HERMES, SHORT)
SIGNS = "@,= \n"
"""Characters of the short form, beside those of names and arguments."""
_LINE = re.compile(r"^@(.*)$", re.MULTILINE)
_CALL = re.compile(r"([A-Za-z_][\w./-]*)(?:[ \t]+(.*))?")


def choose_form(calls: str, actor: Actor, tools: Sequence[Tool], problem: Problem) -> str:
    """Return `hermes` if the policy's chat template shows the tools, else `short`; or what the recipe says."""
    if calls != AUTO:
        return calls
    schemas, arguments = [tool.schema for tool in tools], problem.template_arguments
    try:
        shown = actor.render(as_messages(problem.prompt), tools=schemas, template_arguments=arguments)
    except NoChatTemplate:
        return SHORT
    return HERMES if all(tool.name in shown for tool in tools) else SHORT


def parse_short_calls(text: str, tools: Sequence[Tool]) -> list[ToolCall | InvalidToolCall]:
    """Return the calls of a text in order: lines `@name argument, argument` outside of thoughts. Never raises.

    The arguments are in the order of the parameters. The last parameter takes the rest of the line, commas too.
    """
    return [_read_line(found[1].strip(), tools) for found in find_outside(_LINE, text, find_thoughts(text))]


def _read_line(line: str, tools: Sequence[Tool]) -> ToolCall | InvalidToolCall:
    found = _CALL.fullmatch(line)
    if not found:
        return InvalidToolCall("a call is a line `@name argument, argument`", f"@{line}")
    name, rest = found[1], (found[2] or "").strip()
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        known = ", ".join(tool.name for tool in tools)
        return InvalidToolCall(f"there is no tool {name}; the tools are {known}", f"@{line}", is_unknown=True)
    if rest and not tool.kinds:
        return InvalidToolCall(f"{name} takes no arguments", f"@{line}")
    texts = [text.strip() for text in rest.split(",", len(tool.kinds) - 1)] if rest else []
    try:
        return ToolCall(name, tool.read_texts(texts))
    except BadArguments as error:
        return InvalidToolCall(str(error), f"@{line}")


def refuse_cut_call(calls: Sequence[ToolCall | InvalidToolCall], text: str) -> list[ToolCall | InvalidToolCall]:
    """Return the calls of a text that ends by a token limit: in the short form, its last line may lack its end."""
    if calls and text.rpartition("\n")[2].startswith("@"):
        return [*calls[:-1], InvalidToolCall("the call was cut off by the limit of tokens", text.rpartition("\n")[2])]
    return list(calls)


def write_hermes_call(call: ToolCall) -> str:
    """Return a call in the form of Hermes and Qwen."""
    written = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>{written}</tool_call>"


def build_observations(form: str, outcomes: Sequence[Outcome]) -> list[Message]:
    """Return the messages with the outcomes of an answer's calls: in the short form one, a line `= result` each."""
    if form == HERMES:
        return [{"role": "tool", "name": one.tool, "content": one.text} for one in outcomes]
    lines = "".join(f"= {' '.join(one.text.split(chr(10)))}\n" for one in outcomes)
    return [{"role": "user", "content": lines}]


class Encodes(Protocol):
    """The part of an actor that turns text into tokens and back."""

    def encode_plain(self, text: str) -> list[int]:
        """See `Actor.encode_plain`."""

    def decode(self, ids: Sequence[int], *, special_tokens: bool = False) -> str:
        """See `Actor.decode`."""


def fit_to_policy(outcome: Outcome, actor: Encodes) -> Outcome:
    """Return an outcome that a policy can read: without special tokens, and characters that its alphabet lacks.

    The latter counts as a cut output.
    """
    text, is_cut = outcome.text, outcome.is_cut
    if not _can_encode(actor, text):
        text, is_cut = "".join(one for one in text if _can_encode(actor, one)), True
    ids = actor.encode_plain(text)
    plain = actor.decode(ids)
    if plain != actor.decode(ids, special_tokens=True):
        text = plain
    return outcome if text == outcome.text else replace(outcome, text=text, is_cut=is_cut)


def _can_encode(actor: Encodes, text: str) -> bool:
    try:
        actor.encode_plain(text)
    except CannotEncode:
        return False
    return True


def list_lacking(alphabet: str, tools: Sequence[Tool]) -> str:
    """Return the characters of calls in the short form that an alphabet lacks."""
    return "".join(sorted({*SIGNS, *(character for tool in tools for character in tool.name)} - set(alphabet)))
