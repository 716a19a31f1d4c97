"""The HTTP calls that an engine makes to any kind of generation server. Nothing here imports torch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import httpx2
import numpy as np
import numpy.typing as npt

from headrace.producers.engines.contract import EngineError, Sampling

CONTROL_LIMIT_S = 30.0
"""Seconds to wait for the answer to a cheap question."""
IDLE_S = 1.0
"""Seconds for which an idle connection is kept. Servers close it after 5 s, and a request at that moment is lost."""
FRESH = "default"
"""The label of weights that nobody loaded: somebody has started the server, without a label."""
OTHER_WEIGHTS = (
    "another process loads weights into this server (give each worker a server of its own), or this is an SGLang "
    "server that was started again with --weight-version (start it without this option)"
)
"""Why a server may have weights that this worker did not load, and what to do."""


class ServerAway(Exception):
    """A server does not answer, or failed before its answer was complete."""


class WeightsRefused(EngineError):
    """A server refused to load weights, and keeps those that it has."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """The result of one request."""

    ids: npt.NDArray[np.int32]
    """int32[T]"""
    logprobs: npt.NDArray[np.float32]
    """float32[T], by the convention of its kind of server"""
    version_runs: tuple[tuple[int, int], ...]
    """(version, length) pairs in order; lengths sum to T"""
    ended: Literal["stop", "length", "aborted"]
    """aborted: the server cancelled the request, on order or by itself; the answer has the tokens until then"""
    cached_tokens: int = 0
    """prompt tokens found in the server's prefix cache"""
    routing: npt.NDArray[np.uint8 | np.uint16] | None = None
    """uint8 or uint16 [P+T-1, layers, experts per token]; see `Generation.routing`"""


NOTHING = Answer(np.zeros(0, np.int32), np.zeros(0, np.float32), (), "aborted")
"""Answer to a request that is cancelled before it was sent."""


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """What is in a server now."""

    running: int
    waiting: int
    used_tokens: int
    """Tokens in the KV cache of running requests."""
    capacity_tokens: int = 0
    """Tokens for which the KV cache has room; 0: the server does not report it."""
    retractions: int = 0
    """How often, since its start, the server dropped a running request's KV cache for lack of room."""


class ServerApi(Protocol):
    """One server's HTTP interface. Every method raises ServerAway; any thread may call those that are not async."""

    async def generate(
        self, request_id: str, ids: Sequence[int], sampling: Sampling, version: int | None = None
    ) -> Answer:
        """Continue `ids`. Raises EngineError for a request that the server refuses.

        Args:
            request_id: A new id, which `abort` takes.
            ids: Tokens to continue.
            sampling: How to sample.
            version: Which of several versions in the server to use; None for the newest.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request now with its tokens so far; ignore an unknown request."""
        ...

    def load(self, folder: Path, version: int) -> float:
        """Swap the weights between two tokens; return the seconds without generation.

        Raises WeightsRefused.
        """
        ...

    def note_started(self, folder: Path, version: int) -> None:
        """Note the version with which the server was started. Raises WeightsRefused for an unusable server."""
        ...

    def read_weight_version(self) -> str:
        """Return the label of the weights that it serves."""
        ...

    def read_load(self) -> ServerLoad:
        """Return the server's current load."""
        ...

    def is_ready(self) -> bool:
        """Return whether it can generate; False instead of ServerAway."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


class AdapterServerApi(ServerApi, Protocol):
    """A server with one base and several versions of an adapter; `load` makes one of them the newest."""

    left_over: int
    """Number of versions that are no longer needed but that the server cannot unload."""

    def add(self, folder: Path, version: int) -> None:
        """Load a version beside those that the server has. Raises WeightsRefused."""
        ...

    def has(self, version: int) -> bool:
        """Return whether the server has a version."""
        ...

    def unload_others(self, versions: Collection[int]) -> None:
        """Remove all versions but these and the newest, after the end of their requests. Raises WeightsRefused."""
        ...


class HttpConnections:
    """Connections to one server. Requests run in a separate thread, whose event loop outlives those of the callers.

    Args:
        url: Address of the server, as `http://host:port`.
        key: API key, if the server needs one.
    """

    def __init__(self, url: str, key: str = "") -> None:
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        # As many connections as there are requests: the server has the queue.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=IDLE_S)
        self._control = httpx2.Client(base_url=self.url, headers=headers, limits=limits, trust_env=False)
        self._requests = httpx2.AsyncClient(
            base_url=self.url, headers=headers, limits=limits, timeout=None, trust_env=False
        )
        self._is_closed, self._submitting = False, threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="engine-requests", daemon=True)
        self._thread.start()

    async def post_async(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        """Post from an event loop, and wait without limit: the caller has the deadline. Raises ServerAway."""
        return await self._call_async("POST", path, body)

    async def get_async(self, path: str) -> httpx2.Response:
        """Get from an event loop, as `post_async`. Raises ServerAway."""
        return await self._call_async("GET", path)

    def call(
        self,
        method: Literal["GET", "POST"],
        path: str,
        body: dict[str, Any] | None = None,
        limit_s: float = CONTROL_LIMIT_S,
    ) -> httpx2.Response:
        """Call from a thread. Raises ServerAway."""
        try:
            return self._control.request(method, path, json=body, timeout=limit_s)
        except (httpx2.HTTPError, RuntimeError) as error:  # RuntimeError: the client is closed
            raise self._away(error) from error

    def close(self) -> None:
        """End open requests, which raise ServerAway, and close the connections. Safe to call twice."""
        self._control.close()
        with self._submitting:
            self._is_closed = True
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    async def _call_async(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx2.Response:
        try:
            return await asyncio.wrap_future(self._submit(self._request(method, path, body)))
        except httpx2.HTTPError as error:
            raise self._away(error) from error

    async def _request(self, method: str, path: str, body: dict[str, Any] | None) -> httpx2.Response:
        try:
            return await self._requests.request(method, path, json=body)
        except asyncio.CancelledError:
            if self._is_closed:  # nobody cancelled the request: its episode goes on with another server
                raise ServerAway(f"{self.url} is closed") from None
            raise

    def _submit(self, request: Coroutine[Any, Any, httpx2.Response]) -> Future[httpx2.Response]:
        with self._submitting:  # `close` cancels every request that was submitted before it
            if not self._is_closed:
                return asyncio.run_coroutine_threadsafe(request, self._loop)
        request.close()
        raise ServerAway(f"{self.url} is closed")

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._end_requests())
        self._loop.close()

    async def _end_requests(self) -> None:
        open_requests = asyncio.all_tasks() - {asyncio.current_task()}
        for request in open_requests:
            request.cancel()
        await asyncio.gather(*open_requests, return_exceptions=True)
        await self._requests.aclose()

    def _away(self, error: Exception) -> ServerAway:
        why = f"{type(error).__name__}: {error}".removesuffix(": ")
        return ServerAway(f"no answer from {self.url} ({why})")


def read_error(response: httpx2.Response) -> str:
    """Return the error message in a server's answer."""
    try:
        found: Any = response.json()
    except ValueError:
        return f"HTTP {response.status_code} {response.text[:200]}".rstrip()
    error = found.get("error", found.get("message", found)) if isinstance(found, dict) else found
    words = error.get("message", error) if isinstance(error, dict) else error
    return f"HTTP {response.status_code} {str(words)[:300]}"
