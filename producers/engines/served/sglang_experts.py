"""SGLang that returns every token's experts, for a trainer that routes the tokens to the same experts.

SGLang keeps the experts of a token beside its KV cache. When it recomputes a cache with newer weights, it replaces
them by the experts of the newer weights. So requests end before a swap, and the engine continues from their tokens
afterwards: tokens generated before the swap keep the experts of the weights that generated them.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headrace.infra.weights.experts import ExpertLayers
from headrace.producers.engines.contract import EngineError, Sampling
from headrace.producers.engines.served.open_requests import OpenRequests
from headrace.producers.engines.served.server_api import NOTHING, Answer, HttpConnections
from headrace.producers.engines.served.sglang_api import USE_TESTED, SGLangApi, read_answer

RETURN_EXPERTS = "--enable-return-routed-experts"


class SGLangExperts(SGLangApi):
    """Implements `ServerApi`. `load` waits for answers: never call it in the thread whose loop awaits `generate`.

    Args:
        connections: To the server.
        experts: Of the model that it serves.
    """

    def __init__(self, connections: HttpConnections, experts: ExpertLayers) -> None:
        super().__init__(connections)
        self._experts = experts
        self._requests = OpenRequests(connections.url)

    async def generate(
        self,
        request_id: str,
        ids: Sequence[int],
        sampling: Sampling,
        version: int | None = None,  # noqa: ARG002 - it has one set of weights
    ) -> Answer:
        """See `ServerApi.generate`. A request during a swap is aborted at once."""
        if not self._requests.try_begin(request_id):
            return NOTHING
        try:
            body = {"rid": request_id, "input_ids": list(map(int, ids)), "return_routed_experts": True}
            found = await self.ask(body, sampling)
        finally:
            self._requests.note_end(request_id)
        answer = read_answer(found, sampling.stop_ids)
        if not len(answer.ids):
            return answer
        routing = read_routing(found["meta_info"].get("routed_experts"), self._experts, len(ids) + len(answer.ids) - 1)
        return replace(answer, routing=routing)

    def load(self, folder: Path, version: int) -> float:
        """See `ServerApi.load`: all requests end, and the engine sends them again for the newer weights."""
        began = time.perf_counter()
        self._requests.stop_admitting()
        try:
            self._requests.end_all(lambda: self._post("/abort_request", {"abort_all": True}))
            super().load(folder, version)
        finally:
            self._requests.begin_admitting()
        return time.perf_counter() - began

    def note_started(self, folder: Path, version: int) -> None:  # noqa: ARG002 - its command names both
        """See `ServerApi.note_started`."""
        self._requests.begin_admitting()


def read_routing(encoded: str | None, experts: ExpertLayers, tokens: int) -> npt.NDArray[np.uint8 | np.uint16]:
    """Return the experts uint8 or uint16 [tokens, layers with experts, experts per token] of an answer.

    Args:
        encoded: Base64 of little-endian int32 [tokens, all layers, experts per token].
        experts: Of the model.
        tokens: Of prompt and answer, but the last one.

    Raises EngineError for an answer without experts, or with those of another model.
    """
    if encoded is None:
        raise EngineError(f"the SGLang server does not return the experts of tokens: start it with {RETURN_EXPERTS}")
    whole = np.frombuffer(base64.b64decode(encoded), "<i4")
    shape = tokens, experts.all_layers, experts.per_token
    if whole.size != np.prod(shape):
        raise EngineError(
            f"SGLang returned {whole.size} expert ids for {tokens} tokens, but the policy's model has {shape[1]} "
            f"layers and uses {shape[2]} experts for each token. Start the server with the policy's model; if it has "
            f"this model, {USE_TESTED}"
        )
    return whole.reshape(shape)[:, experts.layers].astype(experts.dtype)
