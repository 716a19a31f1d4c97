"""Tools of an MCP server (https://modelcontextprotocol.io), which a command starts, over its stdin and stdout.

Needs the extra `mcp`. Each process that calls tools has a server of its own, and starts it again if it has ended.
"""

from __future__ import annotations

import asyncio
import shlex
import threading
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cached_property, partial
from typing import Any
from weakref import WeakKeyDictionary

from headrace.envs.tools.functions import Tool, build_foreign_tool

START_S = 30.0
"""Seconds in which a server must answer after its start."""


class McpToolError(RuntimeError):
    """A server answered a call with an error; the message is its text."""


class McpServer:
    """A server whose tools a policy may call: an entry of an environment's `tools`.

    Args:
        command: Starts the server: a program and its arguments.
        env: Environment variables beside PATH, HOME and the like.
    """

    def __init__(self, *command: str, env: Mapping[str, str] | None = None) -> None:
        if not command or not all(isinstance(word, str) for word in command):
            raise ValueError(
                f"an MCP server needs the words of its command, as in McpServer('python', 'server.py'); got {command}"
            )
        self.command, self._env = command, dict(env or {})
        self.name = f"the MCP server `{shlex.join(command)}`"
        """In messages."""

    def list_tools(self) -> Sequence[Tool]:
        """Return the server's tools; the first call starts it. Raises ValueError if it cannot answer."""
        return self._tools

    @cached_property
    def _tools(self) -> tuple[Tool, ...]:
        found: list[Any] = []
        failed: list[BaseException] = []

        async def ask() -> None:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(START_S):
                    session = await self._open(stack)
                    found.extend((await session.list_tools()).tools)

        def run() -> None:
            try:
                asyncio.run(ask())
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                failed.append(error)

        thread = threading.Thread(target=run)  # the caller may be in an event loop
        thread.start()
        thread.join()
        if failed:
            if isinstance(failed[0], ModuleNotFoundError):
                raise ValueError("an MCP server needs the package mcp: make install EXTRAS=mcp") from failed[0]
            raise ValueError(f"{self.name} does not answer: {_find_cause(failed[0])}") from failed[0]
        return tuple(map(self._build_tool, found))

    def _build_tool(self, told: Any) -> Tool:
        return build_foreign_tool(told.name, told.description or "", told.input_schema, partial(self._call, told.name))

    async def _call(self, name: str, /, **arguments: Any) -> str:
        """Return the text of a result. Raises McpToolError, and ConnectionError if the server has ended."""
        connections = _of_loop()
        connection = connections.get(self)
        if connection is None:
            connection = connections[self] = _Connection(self)
        try:
            session = await asyncio.shield(connection.ready)
            result = await session.call_tool(name, arguments)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            connections.pop(self, None)
            connection.close()
            raise ConnectionError(f"{self.name} is away: {_find_cause(error)}") from error
        text = "\n".join(part.text for part in result.content if getattr(part, "text", None))
        if result.is_error:
            raise McpToolError(text)
        return text

    async def _open(self, stack: AsyncExitStack) -> Any:
        from mcp import ClientSession, StdioServerParameters
        from mcp.client.stdio import stdio_client

        parameters = StdioServerParameters(command=self.command[0], args=list(self.command[1:]), env=self._env)
        streams = await stack.enter_async_context(stdio_client(parameters))
        session = await stack.enter_async_context(ClientSession(*streams))
        await session.initialize()
        return session


class _Connection:
    """A running server of one event loop; a task of its own enters and leaves its contexts, as anyio requires."""

    def __init__(self, server: McpServer) -> None:
        self._server, self._over = server, asyncio.Event()
        self.ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._run())

    def close(self) -> None:
        """End the server."""
        self._over.set()

    async def _run(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(START_S):
                    session = await self._server._open(stack)  # noqa: SLF001 - of this file
                self.ready.set_result(session)
                await self._over.wait()
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            if not self.ready.done():
                self.ready.set_exception(error)


_connections: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[McpServer, _Connection]] = WeakKeyDictionary()


def _of_loop() -> dict[McpServer, _Connection]:
    return _connections.setdefault(asyncio.get_running_loop(), {})


def _find_cause(error: BaseException) -> str:
    """Return the first error inside of a group, in words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".removesuffix(": ")
