"""Links between client and server that a test can cut, slow down or turn into a black hole."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

from headrace.infra.embedded.loopback_ports import HOST, draw_port
from headrace.infra.process.child_process import ChildCommand, spawn

START_S = 120.0


class Toxiproxy:
    """The proxy's process on this machine, for as long as the context lasts."""

    def __init__(self, program: Path, log: Path) -> None:
        self._program, self._log = program, log
        self._port = free_port()

    def __enter__(self) -> Self:
        command = [str(self._program), "-host", HOST, "-port", str(self._port)]
        self._process = spawn(ChildCommand(command, os.environ, self._log))
        end = time.monotonic() + START_S
        while True:
            try:
                self.ask("GET", "/version")
            except OSError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < end, f"toxiproxy does not answer within {START_S} s"
                time.sleep(0.05)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def link(self, name: str, upstream: str) -> Link:
        """Lead to `host:port` from a port of this machine, which nothing need listen on yet."""
        port = free_port()
        self.ask("POST", "/proxies", {"name": name, "listen": f"{HOST}:{port}", "upstream": upstream})
        return Link(self, name, port)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{HOST}:{self._port}{path}", data, method=method)
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60).close()


class Link:
    """One way to one server. Each fault lasts until `heal`, which also closes no connection that still stands."""

    def __init__(self, proxy: Toxiproxy, name: str, port: int) -> None:
        self._proxy, self._path = proxy, f"/proxies/{name}"
        self.port = port

    @property
    def address(self) -> str:
        """`host:port` for clients."""
        return f"{HOST}:{self.port}"

    def cut(self) -> None:
        """Close every connection and refuse new ones."""
        self._proxy.ask("POST", self._path, {"enabled": False})

    def delay(self, latency_s: float) -> None:
        """Let every answer come later."""
        self._add("late", "latency", "downstream", latency=round(latency_s * 1000))

    def swallow(self) -> None:
        """Take connections and bytes, and let nothing through either way: only time-outs notice."""
        for stream in ("upstream", "downstream"):
            self._add(f"hole-{stream}", "timeout", stream, timeout=0)

    def heal(self) -> None:
        """Be a link again."""
        self._proxy.ask("POST", "/reset")

    def _add(self, name: str, kind: str, stream: str, **attributes: int) -> None:
        toxic = {"name": name, "type": kind, "stream": stream, "attributes": attributes}
        self._proxy.ask("POST", f"{self._path}/toxics", toxic)


def free_port() -> int:
    """Draw a port that nobody uses now."""
    with draw_port() as held:
        port: int = held.getsockname()[1]
        return port
