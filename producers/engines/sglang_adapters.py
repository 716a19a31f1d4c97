"""SGLang with adapters by name: a server has one base, and several versions of an adapter beside it.

A version is an adapter with a name of its own, so a request is of the version that it names. When a newer one is
loaded, requests are ended, and the engine goes on from their tokens: with the newer name those that follow the newest,
with the same name those of an evaluation. SGLang keeps the prefix caches of adapters apart.

SGLang removes an adapter once it counts no requests of it, and waits for that without a limit. A request that ended
while it was in the queue is counted for ever (seen in 0.5.21). So an adapter is removed only where every request of it
is known to have ended otherwise; the others stay in the server's memory until it is started again.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headrace.producers.engines.contract import EngineError, Sampling
from headrace.producers.engines.server_api import Answer, HttpConnections, ServerAway, WeightsRefused, read_error
from headrace.producers.engines.sglang_api import HTTP_OK, LOAD_LIMIT_S, SGLangApi, read_answer, read_label

ANSWERS_LIMIT_S = 60.0
"""For the answers of requests that are ended for a newer version."""
AGAIN_S = 0.05
"""Between two times that requests are ended: an order that overtakes its request ends nothing."""
ENDED_WHILE_IT_RAN = "Aborted"
"""SGLang's word for a request that it ended, and counts no more."""
MOST_IN_BATCH = 4
"""Versions of an adapter that SGLang computes at once: the newest, the one before it and two that are held."""


class SGLangAdapters(SGLangApi):
    """Implements `AdapterServerApi`. `load` is not for the thread whose loop awaits `generate`."""

    def __init__(self, connections: HttpConnections) -> None:
        super().__init__(connections)
        self._names: dict[int, str] = {}
        """Version to the name of its adapter in the server."""
        self._newest: int | None = None
        self._base: int | None = None
        """The label of the base, which comes back with every token."""
        self._following: dict[str, int] = {}
        """Requests of the newest version, and the version that it was."""
        self._counted: set[int] = set()
        """Versions that SGLang may count requests of for ever."""
        self.left_over = 0
        """See `AdapterServerApi.left_over`."""
        self._turn = threading.Condition()
        """Over all of these, and told when a request is over."""

    async def generate(
        self, request_id: str, ids: Sequence[int], sampling: Sampling, version: int | None = None
    ) -> Answer:
        """See `ServerApi.generate`. A version that is not there gives nothing, as if it was given up."""
        with self._turn:
            used = self._newest if version is None else version
            if used is None or used not in self._names:
                return Answer(np.zeros(0, np.int32), np.zeros(0, np.float32), (), "aborted")
            if version is None:
                self._following[request_id] = used
            name = self._names[used]
        is_counted = True
        try:
            found = await self.ask({"rid": request_id, "input_ids": list(map(int, ids)), "lora_path": name}, sampling)
            reason = found["meta_info"]["finish_reason"]
            is_counted = reason["type"] == "abort" and reason.get("message") != ENDED_WHILE_IT_RAN
        finally:
            with self._turn:
                if is_counted:
                    self._counted.add(used)
                self._following.pop(request_id, None)
                self._turn.notify_all()
        answer = read_answer(found, sampling.stop_ids)
        if {label for label, _ in answer.version_runs} - {self._base}:
            raise EngineError(f"{self._http.url} changed its base: another process loads weights into it")
        return replace(answer, version_runs=((used, len(answer.ids)),) if len(answer.ids) else ())

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
        self._order("/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}, version)
        with self._turn:
            self._names[version] = name

    def has(self, version: int) -> bool:
        """See `AdapterServerApi.has`."""
        with self._turn:
            return version in self._names

    def keep(self, versions: Collection[int]) -> None:
        """See `AdapterServerApi.keep`."""
        with self._turn:
            old = {one: name for one, name in self._names.items() if one not in versions and one != self._newest}
            for one in old:
                del self._names[one]
            self.left_over += len(old.keys() & self._counted)
            can_go = {one: name for one, name in old.items() if one not in self._counted}
        for version, name in can_go.items():
            self._order("/unload_lora_adapter", {"lora_name": name}, version)

    def note_started(self, folder: Path, version: int) -> None:
        """See `ServerApi.note_started`: it was started with the base alone."""
        self._base = read_label(super().read_version())
        self.load(folder, version)

    def read_version(self) -> str:
        """See `ServerApi.read_version`; that of a base which somebody else loaded is none of ours."""
        label = super().read_version()
        return str(self._newest) if label == str(self._base) else label

    def _end_followers(self, version: int) -> None:
        """End the requests of versions before, and wait for what they have. Raises ServerAway."""
        end = time.monotonic() + ANSWERS_LIMIT_S
        while self._has_followers(version):
            if time.monotonic() > end:
                raise ServerAway(f"{self._http.url} did not end its requests in {ANSWERS_LIMIT_S:.0f} s")
            # All at once: one by one takes seconds.
            self._http.call("POST", "/abort_request", {"abort_all": True})
            with self._turn:
                self._turn.wait(AGAIN_S)

    def _has_followers(self, version: int) -> bool:
        with self._turn:
            return any(used != version for used in self._following.values())

    def _order(self, path: str, body: dict[str, Any], version: int) -> None:
        response = self._http.call("POST", path, body, LOAD_LIMIT_S)
        if response.status_code != HTTP_OK or not response.json().get("success"):
            raise WeightsRefused(f"SGLang does not take adapter {version} at {path}: {read_error(response)}")
