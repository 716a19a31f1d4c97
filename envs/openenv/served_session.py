"""A session of an OpenEnv server's client: its messages, and the world that it has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import structlog

from headrace.envs.contract import Environment, Problem, Split
from headrace.envs.isolation import IsolatedEnvironment
from headrace.envs.messages import show_value
from headrace.envs.openenv.served import Failed, Kind, NoAction, open_served
from headrace.envs.openenv.wire import EXECUTION_ERROR, INVALID_JSON, LIST_TOOLS, UNKNOWN_TYPE, VALIDATION_ERROR
from headrace.envs.tools.functions import BadArguments
from headrace.envs.tools.outcomes import Limits
from headrace.envs.worlds.contract import Step, World
from headrace.infra.own_frames import describe_with_location, make_encodable

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Served:
    """What all sessions of a server share."""

    isolated: IsolatedEnvironment
    kind: Kind
    limits: Limits
    choose_problem: Callable[[Mapping[str, Any]], tuple[Split, int]]
    """Returns split and index of the problem that a reset asks for. Raises NoAction."""


@dataclass(slots=True)
class ServedSession:
    """A session of one client; its episodes follow one another, each in a session of its own of the child pool."""

    served: Served
    _world: World | None = None
    """None before the first episode, and after the last step of each."""
    _episode: ExitStack = field(default_factory=ExitStack)
    _state: dict[str, Any] = field(default_factory=lambda: {"episode_id": None, "step_count": 0})

    async def answer(self, text: str) -> str | None:
        """Return the answer to a message; None if it ends the session."""
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as error:
            return write_error(INVALID_JSON, f"Invalid JSON: {error}")
        kind, data = (message.get("type"), message.get("data", {})) if isinstance(message, dict) else (None, None)
        if kind == "close":
            return None
        try:
            return await self._carry_out(kind, data)
        except (NoAction, BadArguments) as error:
            return write_error(VALIDATION_ERROR, str(error))
        except Exception as error:  # noqa: BLE001 - whatever the environment raises, the client hears of it
            await self.end_episode()
            why = describe_with_location(error, with_type=True)
            # An environment that is served failed; the client was told.
            log.warning("served.failed", environment=self.served.isolated.name, why=why)
            return write_error(EXECUTION_ERROR, why)

    async def end_episode(self) -> None:
        """End the episode, if there is one, and its session of the child pool."""
        world, self._world = self._world, None
        if world is not None:
            await world.close()
        self._episode.close()

    async def _carry_out(self, kind: Any, data: Any) -> str:
        if not isinstance(data, dict):
            raise NoAction("a message is an object with `type` and an object `data`")
        if kind == "state":
            return _write("state", self._state)
        if kind not in ("reset", "step"):
            return write_error(UNKNOWN_TYPE, f"there are reset, step, state and close; got {show_value(kind)}")
        if kind == "step" and (tools := self.served.kind.tools) and data.get("type") == LIST_TOOLS["type"]:
            listed = {"tools": [_show_tool(tool.schema) for tool in tools]}
            return _write("observation", {"observation": listed, "reward": None, "done": False})
        if kind == "step" and self._world is None:
            return write_error(EXECUTION_ERROR, "no episode has begun: send reset first")
        return _write("observation", await (self._reset(data) if kind == "reset" else self._step(data)))

    async def _reset(self, data: Mapping[str, Any]) -> dict[str, Any]:
        chosen, limits = self.served.choose_problem(data), self.served.limits
        await self.end_episode()
        self._episode = ExitStack()
        env = self._episode.enter_context(self.served.isolated.open_episode())
        problem = await env.run(f"{env.name}.problem", _build_problem, Problem("", ""), chosen, limits.call_limit_s)
        self._world = await open_served(env, self.served.kind, problem, limits)
        episode_id = data.get("episode_id")
        self._state = {"episode_id": episode_id if isinstance(episode_id, str) else token_hex(8), "step_count": 0}
        return _build_observation(Step(problem.text))

    async def _step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        name, arguments = self.served.kind.read_action(data)
        assert self._world is not None  # noqa: S101 - for the types
        step = await self._world.act(name, arguments)
        self._state["step_count"] += 1
        if step.done:
            await self.end_episode()
        return _build_observation(step, name)


def _build_problem(environment: Environment, _: Problem, split: Split, index: int) -> Problem:
    """Return a problem, in the child."""
    return environment.problem(split, index)


def _build_observation(step: Step, tool: str = "") -> dict[str, Any]:
    text = make_encodable(step.observation)
    seen: dict[str, Any] = {"tool_name": tool, "result": text, "error": None} if tool else {"text": text}
    if isinstance(step, Failed):
        error = {"error_type": step.error_type, "message": text.removeprefix("error: ")}
        seen |= {"result": None, "error": error}
    return {"observation": {**seen, "metadata": {}}, "reward": step.reward, "done": step.done}


def _show_tool(schema: Mapping[str, Any]) -> dict[str, Any]:
    inner = schema["function"]
    return {"name": inner["name"], "description": inner["description"], "input_schema": inner["parameters"]}


def _write(kind: str, data: Mapping[str, Any]) -> str:
    return json.dumps({"type": kind, "data": data})


def write_error(code: str, message: str, **more: Any) -> str:
    """Return an answer that says what is wrong."""
    return _write("error", {"message": make_encodable(message), "code": code, **more})
