"""Versions of an adapter in a server, each under a name of its own, and the requests of each.

Each request names the version that it uses. Loading a newer version ends all requests, and the engine continues from
their tokens: a training request under the newer name, a request of an evaluation under the same name.
"""

from __future__ import annotations

import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path

from headrace.producers.engines.served.open_requests import AGAIN_S, ANSWERS_LIMIT_S
from headrace.producers.engines.served.server_api import ServerAway


class NamedAdapters(ABC):
    """Base of `AdapterServerApi`s: which versions a server has, and which requests follow the newest.

    Any thread may call it, but `load` waits for answers, so never call `load` in the thread whose loop awaits
    `generate`.

    Args:
        server: Its name, for messages.
    """

    left_over = 0
    """See `AdapterServerApi.left_over`."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._names: dict[int, str] = {}
        """Version to the name of its adapter in the server."""
        self._newest: int | None = None
        self._open: dict[str, int | None] = {}
        """Open requests. For a request that follows the newest version: the newest version when the request began."""
        self._turn = threading.Condition()
        """Guards all of these, and is notified when a request ends."""

    def load(self, folder: Path, version: int) -> float:
        """See `ServerApi.load`: requests that follow the newest version end, and go on with this one."""
        self.add(folder, version)
        began = time.perf_counter()
        with self._turn:
            self._newest = version
        self._end_followers(version)
        return time.perf_counter() - began

    def add(self, folder: Path, version: int) -> None:
        """See `AdapterServerApi.add`."""
        if self.has(version):
            return
        name = f"{version}-{uuid.uuid4().hex[:8]}"  # a name that was removed may still be answered from its folder
        self._load_adapter(name, folder, version)
        with self._turn:
            self._names[version] = name

    def has(self, version: int) -> bool:
        """See `AdapterServerApi.has`."""
        return version in self._names

    def unload_others(self, versions: Collection[int]) -> None:
        """See `AdapterServerApi.unload_others`."""
        for version, name in self._forget_others(versions).items():
            self._unload_adapter(name, version)

    def _begin_request(self, request_id: str, version: int | None) -> tuple[int, str] | None:
        """Note a request before it is sent; return its version and adapter name, None if the server lacks it."""
        with self._turn:
            used = self._newest if version is None else version
            if used is None or used not in self._names:
                return None
            self._open[request_id] = used if version is None else None
            return used, self._names[used]

    def _note_request_end(self, request_id: str) -> None:
        """Note that a request is over."""
        with self._turn:
            self._open.pop(request_id, None)
            self._turn.notify_all()

    def _forget_others(self, versions: Collection[int]) -> dict[int, str]:
        """Forget all versions but these and the newest; return their names."""
        with self._turn:
            old = {one: name for one, name in self._names.items() if one not in versions and one != self._newest}
            for one in old:
                del self._names[one]
            return old

    def _end_followers(self, version: int) -> None:
        """End the requests of earlier versions, and wait for their answers. Raises ServerAway."""
        end = time.monotonic() + ANSWERS_LIMIT_S
        while self._has_followers(version):
            if time.monotonic() > end:
                raise ServerAway(
                    f"{self._server} was asked to abort its requests, but requests of earlier versions were still open "
                    f"after {ANSWERS_LIMIT_S:.0f} s"
                )
            self._end_requests()  # all at once: one by one takes seconds
            with self._turn:
                self._turn.wait(AGAIN_S)

    def _has_followers(self, version: int) -> bool:
        with self._turn:
            return any(used not in (None, version) for used in self._open.values())

    @abstractmethod
    def _load_adapter(self, name: str, folder: Path, version: int) -> None:
        """Have the server take an adapter. Raises WeightsRefused."""

    @abstractmethod
    def _unload_adapter(self, name: str, version: int) -> None:
        """Have the server remove an adapter. Raises WeightsRefused."""

    @abstractmethod
    def _end_requests(self) -> None:
        """Have the server end all requests; a request that arrives after the order may run on."""
