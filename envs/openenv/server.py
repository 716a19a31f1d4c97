"""Serves an environment over OpenEnv's wire: plain routes, and a WebSocket for each session."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from headrace.envs.contract import Environment, Split
from headrace.envs.identity import find_version
from headrace.envs.isolation import IsolatedEnvironment
from headrace.envs.messages import show_value
from headrace.envs.openenv.served import NoAction, find_kind
from headrace.envs.openenv.served_session import Served, ServedSession, write_error
from headrace.envs.openenv.wire import CAPACITY_REACHED
from headrace.envs.tools.outcomes import Limits

IDLE_S = 3600.0
"""Seconds without a message after which a session is ended: its client may hang."""
MOST_BYTES = 64 * 1024
"""Of the body of a request."""
MOST_LISTED = 100_000
"""Most tasks in one answer, each of some 50 bytes; more are refused."""
SPLITS: Mapping[Split, str] = {"train": "train", "held_out": "test"}
"""Our splits that are served, with OpenEnv's types."""


class EnvironmentServer:
    """An environment with its routes and sessions.

    Args:
        environment: What is served.
        build: Builds it in a child process; see `IsolatedEnvironment`.
        sessions: Most sessions at once.
        limits: Of an action.

    Raises UsageError or ValueError for an environment that cannot be served.
    """

    def __init__(
        self,
        environment: Environment,
        build: Callable[[], Environment] | None = None,
        sessions: int = 8,
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
    ) -> None:
        isolated = IsolatedEnvironment(environment, build, limits.call_limit_s)
        self._served = Served(isolated, find_kind(environment), limits, self._choose_problem)
        self._environment, self._most, self._open = environment, sessions, 0
        self._sizes = {split: size for split in SPLITS if (size := environment.size(split)) != 0}

    def build_app(self) -> Starlette:
        """Return the routes as an application."""
        name = f"/{self._environment.name}"
        state = {"episode_id": {"type": "string"}, "step_count": {"type": "integer"}}
        seen = {"text": {"type": "string"}} | (
            {"tool_name": {}, "result": {}, "error": {}} if self._served.kind.tools else {}
        )
        schemas = {
            "action": self._served.kind.action_schema,
            "observation": {"title": "Observation", "type": "object", "properties": seen},
            "state": {"title": "State", "type": "object", "properties": state},
        }
        description = (type(self._environment).__doc__ or "").partition("\n")[0]
        version = find_version(self._environment)
        plain = {
            "/health": {"status": "healthy"},
            "/schema": schemas,
            "/metadata": {"name": self._environment.name, "description": description, "version": version},
            "/list_environments": [self._environment.name],
            f"{name}/splits": [{"name": split, "type": SPLITS[split]} for split in self._sizes],
        }
        routes: list[BaseRoute] = [Route(path, partial(_answer_plain, found)) for path, found in plain.items()]
        posts = {"num_tasks": self._count, "task": self._show_task, "task_range": self._list_range, "tasks": self._list}
        routes += [
            Route(f"{name}/{path}", partial(_answer_post, made), methods=["POST"]) for path, made in posts.items()
        ]
        return Starlette(routes=[*routes, WebSocketRoute("/ws", self._serve)])

    def _size(self, asked: Any) -> tuple[Split, int | None]:
        """Return a split that is served, and its size. Raises NoAction."""
        if (split := next((one for one in self._sizes if one == asked), None)) is None:
            raise NoAction(f"split: there is no {show_value(asked)}; there are {', '.join(self._sizes)}")
        return split, self._sizes[split]

    def _count(self, asked: Mapping[str, Any]) -> Any:
        split, size = self._size(asked.get("split"))
        if size is None:
            raise HTTPException(501, f"split {split} never ends")
        return {"num_tasks": size}

    def _show_task(self, asked: Mapping[str, Any]) -> Any:
        split, size = self._size(asked.get("split"))
        return {"task": self._build_task(split, size, asked.get("index"))}

    def _list_range(self, asked: Mapping[str, Any]) -> Any:
        split, size = self._size(asked.get("split"))
        most = sys.maxsize if size is None else size
        bounds = [asked.get("start"), asked.get("stop")]
        if not all(one is None or type(one) is int for one in bounds):
            raise HTTPException(422, f"start and stop must be integers, got {bounds}")
        indices = range(most)[slice(*bounds)]
        if len(indices) > MOST_LISTED:
            raise HTTPException(400, f"more than {MOST_LISTED} tasks at once: ask /task_range for fewer")
        return {"tasks": [self._build_task(split, size, index) for index in indices]}

    def _list(self, asked: Mapping[str, Any]) -> Any:
        return {**self._list_range({"split": asked.get("split")}), "env_name": self._environment.name}

    def _build_task(self, split: Split, size: int | None, index: Any) -> dict[str, Any]:
        """Return what may be known of a task; even its own id may tell the answer."""
        if type(index) is not int or index < 0 or (size is not None and index >= size):
            raise HTTPException(400, f"no task {show_value(index)} in split {split}")
        return {"id": f"{split} {index}", "index": index, "split": split}

    def _choose_problem(self, reset: Mapping[str, Any]) -> tuple[Split, int]:
        """Return split and index of the problem that a client asks for by them, or by a seed. Raises NoAction."""
        asked, index, seed = reset.get("split"), reset.get("index"), reset.get("seed")
        for name, value in (("index", index), ("seed", seed)):
            if value is not None and (type(value) is not int or value < 0):
                raise NoAction(f"{name}: it must be an integer, 0 or more; got {show_value(value)}")
        split, size = self._size(next(iter(self._sizes)) if asked in (None, "") else asked)
        if index is None:
            drawn = Random().randrange(2**31) if seed is None else seed  # noqa: S311
            index = drawn if size is None else drawn % size
        if size is not None and index >= size:
            raise NoAction(f"index: split {split} has {size} tasks, from 0 on; got {index}")
        return split, index

    async def _serve(self, socket: WebSocket) -> None:
        """Answer the messages of a session until it ends."""
        await socket.accept()
        if self._open >= self._most:
            full = f"all {self._most} sessions are taken"
            counts = {"active_sessions": self._open, "max_sessions": self._most}
            await socket.send_text(write_error(CAPACITY_REACHED, full, **counts))
            await socket.close()
            return
        self._open += 1
        session = ServedSession(self._served)
        try:
            await _talk(socket, session)
            await socket.close()
        except (WebSocketDisconnect, KeyError):  # KeyError: a message of bytes
            pass
        except TimeoutError:
            await socket.close(1001, f"no message for {IDLE_S:g} s")
        finally:
            self._open -= 1
            await session.end_episode()


async def _talk(socket: WebSocket, session: ServedSession) -> None:
    """Answer messages until the client ends the session. An answer whose client is gone is given up.

    Raises WebSocketDisconnect if the client is gone, KeyError for a message of bytes, TimeoutError after `IDLE_S`.
    """
    running: list[asyncio.Task[Any]] = [hearing := asyncio.create_task(socket.receive_text())]
    try:
        while True:
            async with asyncio.timeout(IDLE_S):
                text = await hearing
            hearing, answering = asyncio.create_task(socket.receive_text()), asyncio.create_task(session.answer(text))
            running = [hearing, answering]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            if hearing.done():
                hearing.result()
            if (reply := await answering) is None:
                return
            await socket.send_text(reply)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _answer_plain(found: Any, _: Request) -> JSONResponse:
    return JSONResponse(found)


async def _answer_post(make: Callable[[Mapping[str, Any]], Any], request: Request) -> JSONResponse:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise HTTPException(413, f"the body has more than {MOST_BYTES} bytes")
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(422, f"the body is no JSON: {error}") from error
    if not isinstance(asked, dict):
        raise HTTPException(422, "the body must be a JSON object")
    try:
        return await asyncio.to_thread(lambda: JSONResponse(make(asked)))
    except NoAction as error:
        raise HTTPException(400, str(error)) from error
