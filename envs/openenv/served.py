"""An environment as a world of an OpenEnv server, whatever its kind: with `act`, with tools, or with single answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.envs.contract import Environment, Problem
from headrace.envs.isolation import IsolatedEnvironment
from headrace.envs.messages import show_value
from headrace.envs.openenv.wire import CALL_FIELDS
from headrace.envs.tool_calls import ToolCall
from headrace.envs.tools.functions import Tool, build_foreign_tool, read_tools
from headrace.envs.tools.outcomes import Limits, answer_call
from headrace.envs.worlds.contract import Step, World
from headrace.envs.worlds.opened import open_world
from headrace.infra.errors import UsageError

ANSWER = "answer"
"""The action that ends an episode of an environment with tools: its text is scored."""
TEXT = "text"
TEXT_PARAMETERS = {"type": "object", "properties": {TEXT: {"type": "string"}}, "required": [TEXT]}
ERROR_TYPES: Mapping[str, str] = {
    "bad_calls": "invalid_args",
    "unknown_tools": "tool_not_found",
    "tool_errors": "execution_error",
    "tool_timeouts": "timeout",
}
"""What went wrong with a call, to OpenEnv's word for it."""


@dataclass(frozen=True, slots=True)
class Failed(Step):
    """A call of a tool that failed."""

    error_type: str = ""
    """What went wrong, in OpenEnv's words."""


class NoAction(ValueError):
    """A message that is no action of the world; the text says why."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What the actions of an environment are."""

    acts: bool
    tools: Sequence[Tool] = ()
    """With `ANSWER`; empty if an action is a text."""

    @property
    def action_schema(self) -> dict[str, Any]:
        """JSON schema of an action, as OpenEnv's own classes give it."""
        if not self.tools:
            return {"title": "TextAction", "additionalProperties": False, **TEXT_PARAMETERS}
        fields = {
            "type": {"const": "call_tool", "default": "call_tool", "type": "string"},
            "tool_name": {"type": "string"},
            "arguments": {"type": "object", "additionalProperties": True},
        }
        return {"title": "CallToolAction", "type": "object", "properties": fields, "required": ["tool_name"]}

    def read_action(self, data: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return name and arguments of an action. Raises NoAction."""
        takes = {*CALL_FIELDS, "type"} if self.tools else {TEXT}
        if unknown := sorted(data.keys() - takes - {"metadata"}):
            raise NoAction(f"{unknown[0]}: an action has the fields {', '.join(sorted(takes))}")
        name, arguments = (data.get("tool_name"), data.get("arguments", {})) if self.tools else ("", dict(data))
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise NoAction("tool_name must be a text, and arguments an object")
        if (name == ANSWER or not self.tools) and not isinstance(arguments.get(TEXT), str):
            raise NoAction(f"{TEXT}: an action needs it, and it must be a text; got {show_value(arguments.get(TEXT))}")
        return name, arguments


def find_kind(environment: Environment) -> Kind:
    """Return what the actions of an environment are. Raises UsageError or ValueError for one that cannot be served."""
    if callable(getattr(environment, "act", None)):
        return Kind(acts=True)
    for method, kind in (("open_world", "of another server"), ("open_terminal", "in boxes")):
        if callable(getattr(environment, method, None)):
            raise UsageError(f"environment {environment.name} has worlds {kind}, which cannot be served")
    if not getattr(environment, "tools", None):
        return Kind(acts=False)
    own = read_tools(environment)
    if any(tool.name == ANSWER for tool in own):
        raise UsageError(f"environment {environment.name} has a tool `{ANSWER}`, which ends an episode: rename it")
    last = build_foreign_tool(ANSWER, "Give the final answer, which ends the episode.", TEXT_PARAMETERS, find_kind)
    return Kind(acts=False, tools=(*own, last))


async def open_served(env: IsolatedEnvironment, kind: Kind, problem: Problem, limits: Limits) -> World:
    """Begin an episode. The world must be closed before the episode of `env` ends."""
    if kind.acts:
        return await open_world(env, problem, limits.call_limit_s)
    return _Scored(env, problem, kind.tools, limits)


class _Scored:
    """An environment with `score`, perhaps with tools; see `World`."""

    observation = ""

    def __init__(self, env: IsolatedEnvironment, problem: Problem, tools: Sequence[Tool], limits: Limits) -> None:
        self._env, self._problem, self._tools, self._limits = env, problem, tools, limits
        self.actions: Sequence[Mapping[str, Any]] = [tool.schema for tool in tools]

    async def act(self, name: str, arguments: Mapping[str, Any]) -> Step:
        """See `World.act`. Raises also the errors of the environment, Overdue and ChildDied."""
        if not self._tools or name == ANSWER:
            score = await self._env.score_in_child(self._problem, arguments[TEXT])
            return Step("", score.reward, done=True)
        call = ToolCall(name, dict(arguments))
        outcome = await answer_call(call, self._tools, self._env, self._problem, self._limits)
        error_type = ERROR_TYPES.get(outcome.kind)
        return Failed(outcome.text, error_type=error_type) if error_type else Step(outcome.text)

    async def close(self) -> None:
        """Do nothing."""
