"""The plain HTTP routes of an OpenEnv server: schemas, its name and version, splits and tasks."""

from __future__ import annotations

import json
import ssl
import time
from functools import cache
from typing import Any

import httpx2

from headrace.envs.messages import show_value
from headrace.envs.worlds.contract import WorldFailed

LIMIT_S = 20.0
"""Seconds in which a server must answer."""
MOST_BYTES = 16 * 2**20
AWAY = {429, 502, 503, 504}
MISSING = {404, 405, 501}
"""What a server answers that has no such route, or whose world has no tasks."""


WRONG = ("illegal", "CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")
"""Words in errors that no wait mends: what answers speaks no HTTP or no TLS, or its certificate is not valid."""
load_certificates = cache(ssl.create_default_context)
"""Loading them takes more CPU time than a request."""


class Routes:
    """The routes of one server. They block.

    Args:
        url: Address of the server, as `http://host:port`.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def find(self, path: str, body: Any = None) -> Any:
        """Return the JSON of a route; None if the server has no such route.

        `body` is posted as JSON, if there is one. Raises ConnectionError if the server is away, and WorldFailed for
        another answer.
        """
        method, url = ("GET" if body is None else "POST"), f"{self.url}{path}"
        try:
            with (
                httpx2.Client(trust_env=False, timeout=LIMIT_S, verify=load_certificates()) as client,
                client.stream(method, url, json=body) as got,
            ):
                status, content = got.status_code, self._read(path, got)
        except httpx2.TransportError as error:
            if any(word in str(error) for word in WRONG):
                raise WorldFailed(f"{self.url} is no server of OpenEnv, or not trusted: {error}") from error
            raise ConnectionError(f"{self.url} does not answer ({type(error).__name__}: {error})") from error
        if status in AWAY:
            raise ConnectionError(f"{self.url} answers with HTTP {status}")
        if status in MISSING:
            return None
        if status >= 400:
            raise WorldFailed(f"{url} answers with HTTP {status}: {content[:200].decode(errors='replace')}")
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise WorldFailed(f"{url} answers with what is no JSON: {show_value(content)}") from error

    def get(self, path: str) -> Any:
        """Return the JSON of a route that every server has. Raises as `find`, and WorldFailed without the route."""
        if (found := self.find(path)) is None:
            raise WorldFailed(f"{self.url} has no route {path}: is it an OpenEnv server?")
        return found

    def _read(self, path: str, got: httpx2.Response) -> bytes:
        began, parts, size = time.monotonic(), list[bytes](), 0
        for part in got.iter_bytes():
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES or time.monotonic() - began > LIMIT_S:
                raise WorldFailed(f"{self.url}{path} sends more than {MOST_BYTES} bytes, or for over {LIMIT_S:g} s")
        return b"".join(parts)
