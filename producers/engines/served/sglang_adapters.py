"""SGLang with adapters by name: a server has one base, and several versions of an adapter beside it.

SGLang keeps the prefix caches of adapters apart. Before it removes an adapter, it waits without limit until it counts
no requests of the adapter. It never stops counting a request that ended in its queue (seen in 0.5.21). So this class
removes an adapter only if no request of it ended in the queue; other adapters stay in the server until its restart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.producers.engines.contract import EngineError, Sampling
from headrace.producers.engines.served.named_adapters import NamedAdapters
from headrace.producers.engines.served.server_api import (
    NOTHING,
    Answer,
    HttpConnections,
    WeightsRefused,
    read_error,
)
from headrace.producers.engines.served.sglang_api import HTTP_OK, LOAD_LIMIT_S, SGLangApi, read_answer, read_label

ENDED_WHILE_IT_RAN = "Aborted"
"""SGLang's finish reason of a request that it ended and no longer counts."""


class SGLangAdapters(NamedAdapters, SGLangApi):
    """Implements `AdapterServerApi`."""

    def __init__(self, connections: HttpConnections) -> None:
        NamedAdapters.__init__(self, connections.url)
        SGLangApi.__init__(self, connections)
        self._base: int | None = None
        """The weight label of the base, which SGLang returns with every token."""
        self._counted: set[int] = set()
        """Versions whose requests SGLang may never stop counting."""

    async def generate(
        self, request_id: str, ids: Sequence[int], sampling: Sampling, version: int | None = None
    ) -> Answer:
        """See `ServerApi.generate`. For a version that the server lacks, the answer is empty and aborted."""
        asked = self._begin_request(request_id, version)
        if asked is None:
            return NOTHING
        used, name = asked
        is_counted = True
        try:
            found = await self.ask({"rid": request_id, "input_ids": list(map(int, ids)), "lora_path": name}, sampling)
            reason = found["meta_info"]["finish_reason"]
            is_counted = reason["type"] == "abort" and reason.get("message") != ENDED_WHILE_IT_RAN
        finally:
            if is_counted:  # noted before the request ends, so that its version is not removed in between
                self._counted.add(used)
            self._note_request_end(request_id)
        answer = read_answer(found, sampling.stop_ids)
        if {label for label, _ in answer.version_runs} - {self._base}:
            raise EngineError(
                f"{self._http.url} has another base model than before: another process loads weights into it; stop "
                "that process"
            )
        return replace(answer, version_runs=((used, len(answer.ids)),) if len(answer.ids) else ())

    def unload_others(self, versions: Collection[int]) -> None:
        """See `AdapterServerApi.unload_others`."""
        old = self._forget_others(versions)
        self.left_over += len(old.keys() & self._counted)
        for version in old.keys() - self._counted:
            self._unload_adapter(old[version], version)

    def note_started(self, folder: Path, version: int) -> None:
        """See `ServerApi.note_started`: the server starts with the base alone."""
        self._base = read_label(super().read_weight_version())
        self.load(folder, version)

    def read_weight_version(self) -> str:
        """See `ServerApi.read_weight_version`; a base that another process loaded has no version of this run."""
        label = super().read_weight_version()
        return str(self._newest) if label == str(self._base) else label

    def _load_adapter(self, name: str, folder: Path, version: int) -> None:
        self._order("/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}, version)

    def _unload_adapter(self, name: str, version: int) -> None:
        self._order("/unload_lora_adapter", {"lora_name": name}, version)

    def _end_requests(self) -> None:
        self._post("/abort_request", {"abort_all": True})

    def _order(self, path: str, body: dict[str, Any], version: int) -> None:
        response = self._http.call("POST", path, body, LOAD_LIMIT_S)
        if response.status_code != HTTP_OK or not response.json().get("success"):
            raise WeightsRefused(
                f"{self._http.url}{path} refuses the adapter of version {version}: {read_error(response)}"
            )
