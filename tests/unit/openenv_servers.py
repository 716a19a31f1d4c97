"""Servers of OpenEnv's wire on 127.0.0.1: ours, and one that says what a test wants."""

from __future__ import annotations

import asyncio
import json
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request as Asked
from websockets.http11 import Response

from headrace.envs.openenv.server import EnvironmentServer
from headrace.envs.tools.outcomes import Limits

TEXT_SCHEMA = {"action": {"properties": {"metadata": {}, "move": {"type": "string"}}, "required": ["move"]}}
FIRST = {"type": "observation", "data": {"observation": {"seen": "a door"}, "reward": None, "done": False}}
CLOSE = "close"
RESET = "reset"
"""The connection is reset: the server's machine or process died."""
HANG = "hang"


@contextmanager
def serving(environment: Any, sessions: int = 4, limit_s: float = 10.0) -> Iterator[str]:
    """Serve an environment of ours; yield the address."""
    with running(EnvironmentServer(environment, sessions=sessions, limits=Limits(limit_s)).build_app()) as url:
        yield url


@contextmanager
def answering(routes: Any) -> Iterator[str]:
    """Serve JSON by path, whatever the method; yield the address."""

    async def answer(request: Request) -> JSONResponse:
        found = routes.get(request.scope["path"])
        return JSONResponse(found, HTTPStatus.NOT_FOUND if found is None else HTTPStatus.OK)

    with running(Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])) as url:
        yield url


@contextmanager
def running(app: Starlette) -> Iterator[str]:
    """Run an application in a thread; yield its address."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)


@contextmanager
def replying(text: bytes) -> Iterator[str]:
    """Send a text, whatever is asked, and close the connection; yield the address."""

    class Reply(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1000)
            self.request.sendall(text)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Reply) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def as_text(said: Any) -> str:
    return said if isinstance(said, str) else json.dumps(said)


def hang_up(client: ServerConnection, said: Any) -> None:
    """Reset the connection, or let its handler close it."""
    if said != RESET:
        return
    client.transport.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    client.transport.abort()


@contextmanager
def lying(*answers: Any, routes: Any = None, status: int = 101) -> Iterator[str]:
    """Serve sessions that give these answers in turn, texts or JSON, whatever they are asked; yield the address.

    `routes`: path to what it answers; a text is sent as it is, and a path that is missing is not found. `status`: of
    the answer to a WebSocket's handshake; 0 resets the connection.
    """
    left, ready, over = list(answers), threading.Event(), threading.Event()
    there = {"/schema": TEXT_SCHEMA, **(routes or {})}
    address: list[int] = []

    def answer_plain(client: ServerConnection, request: Asked) -> Response | None:
        if request.path == "/ws":
            hang_up(client, CLOSE if status else RESET)
            return None if status in (0, 101) else Response(status, "no", Headers())
        found = there.get(request.path)
        code = HTTPStatus.NOT_FOUND if found is None else HTTPStatus.OK
        body = as_text(found).encode()
        return Response(code, code.phrase, Headers({"Content-Length": str(len(body))}), body)

    async def answer(client: ServerConnection) -> None:
        async for _ in client:
            said = left.pop(0) if left else CLOSE
            if said in (CLOSE, RESET):
                hang_up(client, said)
                return
            if said == HANG:
                await asyncio.to_thread(over.wait)
            await client.send(as_text(said))
            if isinstance(said, dict) and said["data"].get("code") == "CAPACITY_REACHED":
                return

    async def run() -> None:
        async with serve(answer, "127.0.0.1", 0, process_request=answer_plain, close_timeout=0.1) as server:
            address.append(next(iter(server.sockets)).getsockname()[1])
            ready.set()
            await asyncio.to_thread(over.wait)
            server.close()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{address[0]}"
    finally:
        over.set()
        thread.join(10)
