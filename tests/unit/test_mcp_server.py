"""Tools of an MCP server: listed from it, called with converted arguments, and started again after its end."""

from __future__ import annotations

import asyncio
import json
import os
from functools import partial
from typing import Any

import pytest
from tools_by_mcp import Remote

from headrace.envs.isolation import IsolatedEnvironment
from headrace.envs.tool_calls import InvalidToolCall, ToolCall
from headrace.envs.tools.forms import parse_short_calls
from headrace.envs.tools.functions import read_tools
from headrace.envs.tools.mcp_server import McpServer
from headrace.envs.tools.outcomes import Limits, Outcome, answer_calls

pytest.importorskip("mcp", reason="the optional extra mcp is not installed")


@pytest.fixture(scope="module")
def remote() -> IsolatedEnvironment:
    return IsolatedEnvironment(Remote(), Remote)  # type: ignore[arg-type]


def answer(remote: IsolatedEnvironment, *calls: ToolCall | InvalidToolCall) -> list[Outcome]:
    async def run() -> list[Outcome]:
        with remote.open_episode() as env:
            return await answer_calls(calls, read_tools(remote), env, remote.problem("train", 0), Limits(60))

    return asyncio.run(run())


def test_tools_of_a_server_stand_beside_functions_and_are_called_alike(remote: IsolatedEnvironment) -> None:
    tools = read_tools(remote)
    assert [tool.name for tool in tools] == ["multiply", "fail", "leave", "local"]
    shown: Any = tools[0].schema["function"]
    assert (shown["description"], shown["parameters"]["required"]) == ("Multiply two integers.", ["a", "b"])
    json.dumps(shown)

    calls = parse_short_calls("@multiply 3, 4\n@local hi\n@fail so\n@multiply 3\n@multiply x, 4", tools)
    product, local, failed, lacking, wrong = answer(remote, *calls)
    assert (product.text, product.kind, local.text) == ("12", "", "hi")
    assert failed.kind == "tool_errors"
    assert "so" in failed.text or "fail" in failed.text
    assert (lacking.kind, wrong.kind) == ("bad_calls", "bad_calls")


def test_a_server_that_ends_is_away_for_its_calls_and_started_again_for_the_next(remote: IsolatedEnvironment) -> None:
    with pytest.raises(ConnectionError, match=r"tools_by_mcp\.py` is away"):
        answer(remote, ToolCall("leave", {}))
    assert answer(remote, ToolCall("multiply", {"a": 3, "b": 4}))[0].text == "12"


def test_a_server_that_cannot_start_is_refused_with_its_command() -> None:
    for build in (McpServer, partial(McpServer, 1)):
        with pytest.raises(ValueError, match="words of its command"):
            build()  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="`no-such-program x` does not answer"):
        McpServer("no-such-program", "x").list_tools()
    with pytest.raises(ValueError, match="does not answer"):
        McpServer("true", env={"HOME": os.environ["HOME"]}).list_tools()
