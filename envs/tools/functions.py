"""Reads the tools of an environment: plain functions, whose signature and docstring become a JSON schema."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import dropwhile
from typing import Any

from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from headrace.envs.messages import show_value
from headrace.infra.own_frames import locate_function

PROBLEM = "problem"
"""A parameter of this name gets the problem of the episode; the policy does not see it."""
SECTIONS = ("Args:", "Arguments:", "Parameters:")
KINDS: Mapping[str, Any] = {"integer": int, "number": float, "boolean": bool, "string": str}
"""Types by their names in a JSON schema; of other types any JSON value is taken."""
_ARGUMENT = re.compile(r"(\w+)(?: ?\([^)]*\))?:\s*(.*)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class BadArguments(ValueError):
    """Arguments that a tool does not take; the message says which, for the policy."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a policy may call."""

    name: str
    function: Callable[..., Any]
    schema: Mapping[str, Any]
    """JSON schema, as chat templates read it."""
    kinds: Mapping[str, TypeAdapter[Any]]
    """The type of each parameter that the policy sees, in order."""
    required: tuple[str, ...]
    takes_problem: bool
    may_return_none: bool
    """Whether None is a result that the function declares."""

    def read_arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call, converted to the parameters' types. Raises BadArguments."""
        takes = f"its arguments are {', '.join(self.kinds)}" if self.kinds else "it takes no arguments"
        for name in given:
            if name not in self.kinds:
                raise BadArguments(f"{self.name} has no argument {name}; {takes}")
        for name in self.required:
            if name not in given:
                raise BadArguments(f"{self.name} needs the argument {name}; {takes}")
        return {name: self._convert(name, value) for name, value in given.items()}

    def read_texts(self, texts: Iterable[str]) -> dict[str, Any]:
        """Return the arguments that texts in the order of the parameters give; lists and tables are JSON."""
        given: dict[str, Any] = {}
        for name, text in zip(self.kinds, texts, strict=False):
            kind = self.schema["function"]["parameters"]["properties"][name].get("type")
            try:
                given[name] = json.loads(text) if kind in ("array", "object") else text
            except (ValueError, RecursionError) as error:
                raise BadArguments(f"argument {name} of {self.name} is not JSON: {error}") from error
        return given

    def _convert(self, name: str, value: Any) -> Any:
        try:
            return self.kinds[name].validate_python(value)
        except ValidationError as error:
            why = error.errors()[0]["msg"]
        except (RecursionError, ValueError) as error:  # of a type's own check
            why = str(error)
        raise BadArguments(f"argument {name} of {self.name}: {why}, got {show_value(value)}")


def build_foreign_tool(
    name: str, description: str, parameters: Mapping[str, Any], function: Callable[..., Any]
) -> Tool:
    """Return a tool of a server, which tells the JSON schema of its parameters."""
    properties = parameters.get("properties", {})
    kinds = {key: TypeAdapter(KINDS.get(str(one.get("type")), Any)) for key, one in properties.items()}
    shown = {"name": name, "description": description, "parameters": dict(parameters)}
    return Tool(
        name,
        function,
        {"type": "function", "function": shown},
        kinds,
        tuple(parameters.get("required", ())),
        takes_problem=False,
        may_return_none=True,
    )


def read_tools(environment: object) -> tuple[Tool, ...]:
    """Return the tools that an environment lists in `tools`. Raises ValueError, which names the tool."""
    name = getattr(environment, "name", type(environment).__name__)
    listed = getattr(environment, "tools", None)
    if not isinstance(listed, list | tuple) or not listed:
        raise ValueError(
            f"environment {name} must list its tools, plain functions, in `tools`, as in `tools = (multiply,)`; got "
            f"{show_value(listed)}"
        )
    tools: tuple[Tool, ...] = ()
    for at, one in enumerate(listed):
        if callable(of_server := getattr(one, "list_tools", None)):  # an McpServer
            tools += tuple(of_server())
        else:
            tools += (_read_listed(environment, f"tools[{at}] of environment {name}", one),)
    names = [tool.name for tool in tools]
    if twice := {one for one in names if names.count(one) > 1}:
        raise ValueError(f"environment {name} has two tools of the name {min(twice)}: rename one")
    return tools


def find_tool(tools: Iterable[Tool], name: str) -> Tool:
    """Return the tool of a name that is known."""
    return next(tool for tool in tools if tool.name == name)


def run_tool(
    environment: object, problem: object, name: str, given: Mapping[str, Any]
) -> tuple[str, bool] | Coroutine[Any, Any, tuple[str, bool]]:
    """Return a tool's result as text, and whether it is None; in a coroutine if the tool is async.

    Raises BadArguments, and whatever the tool raises.
    """
    tool = find_tool(read_tools(environment), name)
    arguments = tool.read_arguments(given) | ({PROBLEM: problem} if tool.takes_problem else {})
    found = tool.function(**arguments)
    return _wait_and_show(found) if inspect.iscoroutine(found) else (_show_result(found), found is None)


async def _wait_and_show(coroutine: Coroutine[Any, Any, Any]) -> tuple[str, bool]:
    found = await coroutine
    return _show_result(found), found is None


def _show_result(value: Any) -> str:
    """Return a text as it is, other plain values as JSON, and the rest by `str`."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool | int | float | dict | list | tuple):
        try:
            return json.dumps(value, ensure_ascii=False, default=str)
        except (TypeError, ValueError, RecursionError):  # keys that JSON has not, or a circle
            return repr(value)
    return str(value)


def _read_listed(environment: object, what: str, listed: Any) -> Tool:
    if not callable(listed) or not isinstance(getattr(listed, "__name__", None), str):
        raise ValueError(f"{what} must be a function, got {show_value(listed)}")  # noqa: TRY004 - as the others
    own = getattr(environment, listed.__name__, None)
    try:
        return read_tool(own if getattr(own, "__func__", None) is listed else listed)  # listed in the class's body
    except ValueError as error:
        raise ValueError(f"{what}{locate_function(listed)}: {error}") from error


@lru_cache(maxsize=1024)
def read_tool(function: Callable[..., Any]) -> Tool:
    """Return a function as a tool. Raises ValueError if a policy could not call it."""
    name = function.__name__
    if not _NAME.fullmatch(name):
        raise ValueError(f"a tool needs a name that a policy can write, got {name!r}: define it with `def`")
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception as error:  # whatever an annotation raises
        raise ValueError(f"the signature of {name} cannot be read: {type(error).__name__}: {error}") from error
    description, described = _read_docstring(function)
    kinds, properties, definitions, required = {}, {}, {}, []
    for parameter in signature.parameters.values():
        if parameter.name == PROBLEM:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(f"{parameter} of {name} has no name that a call can give: write single parameters")
        kinds[parameter.name] = kind = _read_type(name, parameter)
        schema = kind.json_schema()
        definitions.update(schema.pop("$defs", {}))
        told = {"description": described[parameter.name]} if parameter.name in described else {}
        properties[parameter.name] = {**_drop_titles(schema), **told}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    parameters |= {"$defs": _drop_titles(definitions)} if definitions else {}
    shown = {"name": name, "description": description, "parameters": parameters}
    return Tool(
        name,
        function,
        {"type": "function", "function": shown},
        kinds,
        tuple(required),
        PROBLEM in signature.parameters,
        _can_be_none(signature.return_annotation),
    )


def _read_type(tool: str, parameter: inspect.Parameter) -> TypeAdapter[Any]:
    kind = Any if parameter.annotation is parameter.empty else parameter.annotation
    try:
        try:
            found = TypeAdapter(kind, config=ConfigDict(coerce_numbers_to_str=True))
        except PydanticUserError as error:
            if isinstance(error, PydanticSchemaGenerationError):
                raise
            found = TypeAdapter(kind)  # a class with a configuration of its own
        found.json_schema()
    except (PydanticUserError, TypeError) as error:
        raise ValueError(
            f"parameter {parameter.name} of {tool} has the type {kind!r}, which no JSON value can be: use str, int, "
            "float, bool, list, dict, Literal or a dataclass"
        ) from error
    return found


def _can_be_none(annotation: Any) -> bool:
    if annotation is inspect.Signature.empty:
        return False
    try:
        TypeAdapter(annotation).validate_python(None, strict=True)
    except Exception:  # noqa: BLE001 - whatever it is, it is not None
        return annotation is Any
    return True


def _read_docstring(function: object) -> tuple[str, dict[str, str]]:
    """Return the first line of a docstring, and the descriptions in its section `Args:`."""
    lines = (inspect.getdoc(function) or "").splitlines()
    section = list(dropwhile(lambda line: line.strip() not in SECTIONS, lines))[1:]
    found: dict[str, str] = {}
    name, indent = "", 0
    for line in filter(str.strip, section):
        depth = len(line) - len(line.lstrip())
        if not depth:
            break
        indent = indent or depth
        if depth == indent and (match := _ARGUMENT.match(line.strip())):
            name = match[1]
            found[name] = match[2]
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return (lines[0].strip() if lines else ""), found


def _drop_titles(schema: Any) -> Any:
    """Return a schema without the titles that pydantic makes of names."""
    if isinstance(schema, list):
        return [_drop_titles(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _drop_titles(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}
