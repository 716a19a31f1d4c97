"""One session with an OpenEnv server: a WebSocket, on which each message gets one answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from headrace.envs.messages import show_value
from headrace.envs.openenv.routes import AWAY
from headrace.envs.openenv.wire import describe_refusal
from headrace.envs.worlds.contract import WorldFailed

CONNECT_S, CLOSE_S = 10.0, 2.0
MOST_BYTES = 16 * 2**20
"""Most bytes of an answer."""


class Refused(Exception):
    """The server answered with an error; the session lives on, unless the server closes it."""

    def __init__(self, code: str, data: Mapping[str, Any]) -> None:
        self.code, self.why = code, describe_refusal(data)
        super().__init__(f"{code}: {self.why}")


class Closed(Exception):
    """The server has closed the connection; the message says how."""


class OpenEnvSession:
    """A session. Its server has a world for it until it is closed."""

    def __init__(self, url: str, socket: ClientConnection) -> None:
        self.url, self._socket = url, socket

    @classmethod
    async def connect(cls, url: str) -> OpenEnvSession:
        """Connect to a server, as `http://host:port`. Raises ConnectionError if it is away, and WorldFailed."""
        address = f"ws{url.removeprefix('http')}/ws"
        try:
            # A server that computes answers no ping, so there are none: every wait has its own limit.
            timeouts: Any = {"open_timeout": CONNECT_S, "ping_interval": None, "close_timeout": CLOSE_S}
            socket = await connect(address, max_size=MOST_BYTES, proxy=None, **timeouts)
        except InvalidStatus as error:
            status = error.response.status_code
            if status in AWAY:
                raise ConnectionError(f"{address} answers with HTTP {status}") from error
            raise WorldFailed(f"{address} answers with HTTP {status}: is it an OpenEnv server?") from error
        except InvalidHandshake as error:
            if isinstance(error.__cause__, EOFError):  # it closed the connection
                raise ConnectionError(f"{url} does not answer ({error})") from error
            raise WorldFailed(f"{address} does not speak WebSocket ({error}): is it an OpenEnv server?") from error
        except (OSError, EOFError) as error:  # a time limit, too
            raise ConnectionError(f"{url} does not answer ({type(error).__name__}: {error})") from error
        return cls(url, socket)

    async def ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data of the answer to a message. Raises Refused, Closed, and WorldFailed for no valid answer."""
        try:
            with suppress(ConnectionClosed):  # perhaps it said why before it closed
                await self._socket.send(json.dumps({"type": kind, "data": data}))
            text = await self._socket.recv()
        except ConnectionClosed as error:
            raise Closed(str(error)) from error
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise WorldFailed(f"{self.url} answers with what is no JSON: {show_value(text)}") from error
        found = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(found, dict) or answer.get("type") not in ("observation", "error"):
            raise WorldFailed(f"{self.url} answers with no observation, got {show_value(answer)}")
        if answer["type"] == "error":
            raise Refused(str(found.get("code", "")), found)
        return found

    async def close(self) -> None:
        """Give the world back. Raises nothing."""
        with suppress(Exception):
            async with asyncio.timeout(2 * CLOSE_S):
                await self._socket.send('{"type": "close"}')
                await self._socket.close()
