"""Turns every outcome of a call into an observation for the policy, and keeps what the user has to know."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.envs.contract import Problem, ToolError
from headrace.envs.isolation import IsolatedEnvironment
from headrace.envs.tool_calls import InvalidToolCall, ToolCall
from headrace.envs.tools.functions import BadArguments, Tool, run_tool
from headrace.infra.own_frames import locate_function, make_encodable, read_error_text
from headrace.infra.process.child_handle import ChildDied, Overdue
from headrace.infra.unreachable import is_unreachable

Kind = Literal["", "bad_calls", "unknown_tools", "tool_errors", "tool_timeouts", "none_outputs"]
KINDS: tuple[Kind, ...] = ("bad_calls", "unknown_tools", "tool_errors", "tool_timeouts", "none_outputs")
"""What may go wrong with a call: each is a part of the reward, with its count."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a workflow on its calls."""

    call_limit_s: float = 10.0
    observation_chars: int = 4000
    max_calls: int = 16
    """Of one answer, in a world."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a call."""

    tool: str
    """Name of the tool; empty for a call that could not be read."""
    text: str
    """What the policy reads."""
    kind: Kind = ""
    """What went wrong; empty for a result."""
    is_cut: bool = False
    """Whether the text was too long."""
    error: Exception | None = None
    """The error of the tool's own code, for the user."""
    at: str = ""
    """Where it was, for an error that was not raised there."""
    fault: str = ""
    """What went wrong, in whole."""

    def tell(self, turn: int) -> ToolError | None:
        """Return the error for the user, in the policy's turn; None if there is none."""
        return None if self.error is None else ToolError(self.error, turn, self.at)


async def answer_calls(
    calls: Sequence[ToolCall | InvalidToolCall],
    tools: Sequence[Tool],
    env: IsolatedEnvironment,
    problem: Problem,
    limits: Limits,
) -> list[Outcome]:
    """Run the calls of one answer at the same time; return their outcomes in the order of the calls.

    Raises the error of a tool that cannot reach its server, because that is no fault of the policy; and ChildDied.
    """
    return await run_together([answer_call(call, tools, env, problem, limits) for call in calls])


async def run_together(calls: Sequence[Coroutine[Any, Any, Outcome]]) -> list[Outcome]:
    """Run coroutines at the same time; return their outcomes in order. An error cancels the others."""
    running = [asyncio.create_task(call) for call in calls]
    try:
        return list(await asyncio.gather(*running))
    finally:
        for task in running:
            task.cancel()


async def answer_call(
    call: ToolCall | InvalidToolCall, tools: Sequence[Tool], env: IsolatedEnvironment, problem: Problem, limits: Limits
) -> Outcome:
    """Run a call. Raises as `answer_calls` does."""
    if isinstance(call, InvalidToolCall):
        return build_outcome("", f"error: {call.error}", "unknown_tools" if call.is_unknown else "bad_calls", limits)
    tool = next((tool for tool in tools if tool.name == call.name), None)
    if tool is None:
        known = ", ".join(tool.name for tool in tools)
        return build_outcome("", f"error: there is no tool {call.name}; the tools are {known}", "unknown_tools", limits)
    return await _run(tool, call, env, problem, limits)


async def _run(tool: Tool, call: ToolCall, env: IsolatedEnvironment, problem: Problem, limits: Limits) -> Outcome:
    try:
        arguments = (tool.name, call.arguments)
        text, is_none = await env.run(tool.name, run_tool, problem, arguments, limits.call_limit_s)
    except BadArguments as error:
        return build_outcome(tool.name, f"error: {error}", "bad_calls", limits)
    except Overdue as error:
        return build_outcome(tool.name, f"error: {error}", "tool_timeouts", limits, error, error.at)
    except Exception as error:
        if isinstance(error, ChildDied | TimeoutError) or is_unreachable(error):
            raise
        told = f"error: {type(error).__name__}: {read_error_text(error)}".removesuffix(": ")
        return build_outcome(tool.name, told, "tool_errors", limits, error)
    if is_none and not tool.may_return_none:
        why = TypeError(f"the tool {tool.name} returned None: return a text, or declare `-> None`")
        return build_outcome(tool.name, text, "none_outputs", limits, why, locate_function(tool.function).strip(" ()"))
    return build_outcome(tool.name, text, "", limits)


def build_outcome(
    tool: str, text: str, kind: Kind, limits: Limits, error: Exception | None = None, at: str = ""
) -> Outcome:
    """Return the outcome of a call, with its text cut to the limit."""
    text = make_encodable(text)
    fault = text.removeprefix("error: ") if kind else ""
    most = limits.observation_chars
    if is_cut := len(text) > most:
        text = f"{text[:most]} [{len(text) - most} more characters]"
    return Outcome(tool, text, kind, is_cut, error, at, fault)
