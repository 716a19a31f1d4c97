"""The shapes of OpenEnv's messages: how an action is written, and what of an observation the policy reads.

Checked against the package openenv 0.10.0 by `make test-worlds`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.envs.messages import show_value
from headrace.envs.worlds.contract import WorldFailed

OWN_FIELDS = ("metadata", "done", "reward")
"""Fields that every observation has; `metadata` is also one of every action."""
CALL_FIELDS = {"tool_name", "arguments"}
LIST_TOOLS = {"type": "list_tools"}
ACT = "act"
"""Name of the action of a world that has several fields and no tools."""
VALIDATION_ERROR, CAPACITY_REACHED, EXECUTION_ERROR = "VALIDATION_ERROR", "CAPACITY_REACHED", "EXECUTION_ERROR"
INVALID_JSON, UNKNOWN_TYPE = "INVALID_JSON", "UNKNOWN_TYPE"


@dataclass(frozen=True, slots=True)
class ActionForm:
    """How the actions of a world are written."""

    has_tools: bool = False
    """Whether an action is a call of one of the world's tools."""
    text_field: str = ""
    """The only field, a text; empty if there are others."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Fields that always have the same value."""
    schema: Mapping[str, Any] = field(default_factory=dict)
    """JSON schema of the other fields."""

    def list_actions(self, description: str = "") -> list[dict[str, Any]]:
        """Return the action of a world without tools as a tool; none if it is a text."""
        return [] if self.text_field else [{"name": ACT, "description": description, "parameters": self.schema}]

    def write(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return an action as its server reads it."""
        if self.has_tools:
            return {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}
        own = {self.text_field: arguments["text"]} if self.text_field else arguments
        return {**self.constants, **own}


def read_action_form(schemas: Any) -> ActionForm:
    """Return the form of the actions in an answer to `GET /schema`. Raises WorldFailed if there is none."""
    schema = schemas.get("action") if isinstance(schemas, dict) else None
    properties = schema.get("properties", {}) if isinstance(schema, dict) else None
    if not isinstance(schema, dict) or not isinstance(properties, dict):
        raise WorldFailed(f"its /schema has no JSON schema of an action, got {show_value(schemas)}")
    fields = {name: one for name, one in properties.items() if name not in OWN_FIELDS and isinstance(one, dict)}
    if fields.keys() >= CALL_FIELDS or not fields:  # without fields it is the base class, as of worlds with tools
        return ActionForm(has_tools=True)
    constants = {name: one["const"] for name, one in fields.items() if "const" in one}
    free = {name: one for name, one in fields.items() if name not in constants}
    if len(free) == 1:
        [(name, one)] = free.items()
        if one.get("type") == "string" and "enum" not in one:
            return ActionForm(text_field=name, constants=constants)
    required = [name for name in _read_required("its /schema", schema) if name in free]
    parameters = {"type": "object", "properties": free, "required": required}
    parameters |= {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return ActionForm(constants=constants, schema=parameters)


def read_tools(observation: Any) -> list[dict[str, Any]]:
    """Return the tools in an answer to `LIST_TOOLS`. Raises WorldFailed for what lists no tool."""
    listed = observation.get("tools") if isinstance(observation, dict) else None
    if not isinstance(listed, list) or not listed:
        raise WorldFailed(f"its actions are calls of tools, but it lists none, got {show_value(observation)}")
    tools = [_read_tool(one) for one in listed]
    names = [tool["name"] for tool in tools]
    if twice := {name for name in names if names.count(name) > 1}:
        raise WorldFailed(f"it lists two tools of the name {min(twice)}")
    return tools


def _read_tool(told: Any) -> dict[str, Any]:
    name = told.get("name") if isinstance(told, dict) else None
    if not isinstance(name, str) or not name:
        raise WorldFailed(f"it lists a tool without a name, got {show_value(told)}")
    schema = told.get("input_schema") or told.get("inputSchema") or {}
    if not isinstance(schema, dict) or not isinstance(properties := schema.get("properties", {}), dict):
        raise WorldFailed(f"the input_schema of its tool {name} is no JSON schema, got {show_value(schema)}")
    if not all(isinstance(one, dict) for one in properties.values()):
        raise WorldFailed(f"the input_schema of its tool {name} is no JSON schema, got {show_value(schema)}")
    required = _read_required(f"the input_schema of its tool {name}", schema)
    parameters = {**schema, "required": required} if "required" in schema else schema
    return {"name": name, "description": str(told.get("description") or ""), "parameters": parameters}


def _read_required(what: str, schema: Mapping[str, Any]) -> list[str]:
    """Return the parameters that a call needs. Raises WorldFailed for one that no call can give."""
    required, known = schema.get("required") or [], schema.get("properties") or {}
    if not isinstance(required, list) or not all(isinstance(one, str) and one in known for one in required):
        raise WorldFailed(f"{what} requires what is not in its properties, got {show_value(required)}")
    return required


def show_observation(observation: Any, chosen: str = "") -> str:
    """Return what the policy reads of an observation. Raises WorldFailed if it is no object, or lacks a field.

    It is the chosen field; or the result of a call; or the only field; or all fields as JSON.
    """
    if not isinstance(observation, dict):
        raise WorldFailed(f"its observation must be a JSON object, got {show_value(observation)}")
    fields = {name: value for name, value in observation.items() if name not in OWN_FIELDS}
    if chosen:
        if chosen not in fields:
            raise WorldFailed(
                f"its observation has no field {chosen!r}; the fields are {', '.join(fields) or '(none)'}"
            )
        return _show(fields[chosen])
    if fields.keys() >= {"tool_name", "result"}:
        return _show_result(fields["result"], fields.get("error"))
    if not fields:
        return _show(observation["metadata"]) if observation.get("metadata") else ""
    return _show(next(iter(fields.values())) if len(fields) == 1 else fields)


def _show_result(result: Any, error: Any) -> str:
    if error:
        return f"error: {_show(error.get('message', error) if isinstance(error, dict) else error)}"
    content = result.get("content") if isinstance(result, dict) else None
    if not isinstance(content, list):
        return _show(result)
    texts = [str(one["text"]) for one in content if isinstance(one, dict) and one.get("text")]
    return "\n".join(texts) or _show(result.get("structured_content") or "")


def _show(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def describe_refusal(data: Mapping[str, Any], most: int = 5) -> str:
    """Return the message of an error, with what was wrong with which field."""
    errors: Sequence[Any] = data.get("errors") if isinstance(data.get("errors"), list) else ()  # type: ignore[assignment]
    told = [
        f"{'.'.join(map(str, one.get('loc', ())))}: {one.get('msg', '')}"
        for one in errors[:most]
        if isinstance(one, dict)
    ]
    return "; ".join(told) or str(data.get("message", "")) or "no message"
