"""vLLM with adapters by name: a server has one base, and several versions of an adapter beside it.

vLLM keeps the prefix caches of adapters apart by their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.producers.engines.contract import Sampling
from headrace.producers.engines.served.named_adapters import NamedAdapters
from headrace.producers.engines.served.server_api import NOTHING, Answer, HttpConnections, WeightsRefused, read_error
from headrace.producers.engines.served.vllm_api import HTTP_OK, LOAD_LIMIT_S, VllmApi

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What `--max-lora-rank` may be."""


class VllmAdapters(NamedAdapters, VllmApi):
    """Implements `AdapterServerApi`."""

    def __init__(self, connections: HttpConnections) -> None:
        NamedAdapters.__init__(self, connections.url)
        VllmApi.__init__(self, connections)

    async def generate(
        self, request_id: str, ids: Sequence[int], sampling: Sampling, version: int | None = None
    ) -> Answer:
        """See `ServerApi.generate`. For a version that the server lacks, the answer is empty and aborted."""
        asked = self._begin_request(request_id, version)
        if asked is None:
            return NOTHING
        used, name = asked
        try:
            return await self.ask(request_id, ids, sampling, used, model=name)
        finally:
            self._note_request_end(request_id)

    def note_started(self, folder: Path, version: int) -> None:
        """See `ServerApi.note_started`: the server starts with the base alone, whose label never changes."""
        super().note_started(folder, version)
        self.load(folder, version)

    def read_weight_version(self) -> str:
        """See `ServerApi.read_weight_version`; a base that another process loaded has no version of this run."""
        label = super().read_weight_version()
        return str(self._newest) if label == str(self._version) else label

    def _is_open(self, request_id: str) -> bool:
        return request_id in self._open

    def _load_adapter(self, name: str, folder: Path, version: int) -> None:
        self._order("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}, version)

    def _unload_adapter(self, name: str, version: int) -> None:
        self._order("/v1/unload_lora_adapter", {"lora_name": name}, version)

    def _end_requests(self) -> None:
        self._post("/abort_requests", {})

    def _order(self, path: str, body: dict[str, str], version: int) -> None:
        response = self._http.call("POST", path, body, LOAD_LIMIT_S)
        if response.status_code != HTTP_OK:
            raise WeightsRefused(
                f"{self._http.url}{path} refuses the adapter of version {version}: {read_error(response)}"
            )


def choose_rank(rank: int) -> int:
    """Return the lowest `--max-lora-rank` of vLLM that fits adapters of this rank."""
    return next((one for one in RANKS if one >= rank), rank)
