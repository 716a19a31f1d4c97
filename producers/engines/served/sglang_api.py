"""The HTTP interface of an SGLang server, 0.5.19 or newer (https://docs.sglang.ai).

Log-probabilities are log_softmax(logits / temperature) before top-p, top-k and min-p; at temperature 0 they are those
of temperature 1. The label of the weights is the version in decimal; `weight_versions` of an answer has every token's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from headrace.producers.engines.contract import EngineError, Sampling
from headrace.producers.engines.served.server_api import (
    FRESH,
    OTHER_WEIGHTS,
    Answer,
    HttpConnections,
    ServerAway,
    ServerLoad,
    WeightsRefused,
    read_error,
)

HTTP_OK, HTTP_BAD_REQUEST, HTTP_NOT_FOUND = 200, 400, 404
LOAD_LIMIT_S = 900.0
"""Seconds to read one set of weights from a folder in memory."""
READY_LIMIT_S = LOOK_LIMIT_S = 10.0
USE_TESTED = "use a version of SGLang that docs/engines.md lists as tested"


class SGLangApi:
    """Implements `ServerApi`."""

    def __init__(self, connections: HttpConnections) -> None:
        self._http = connections
        self._pauses = self._retractions = 0
        """Both counted since the connection was opened. Answers also count the retractions that a pause causes."""

    async def generate(
        self,
        request_id: str,
        ids: Sequence[int],
        sampling: Sampling,
        version: int | None = None,  # noqa: ARG002 - it has one set of weights
    ) -> Answer:
        """See `ServerApi.generate`."""
        found = await self.ask({"rid": request_id, "input_ids": list(map(int, ids))}, sampling)
        return read_answer(found, sampling.stop_ids)

    async def ask(self, body: dict[str, Any], sampling: Sampling) -> dict[str, Any]:
        """Post a request and return its answer. Raises EngineError if the server refuses it, and ServerAway."""
        pauses = self._pauses
        body = {**body, "sampling_params": build_parameters(sampling), "return_logprob": True}
        response = await self._http.post_async("/generate", body)
        if response.status_code == HTTP_BAD_REQUEST:
            raise EngineError(
                f"{self._http.url} refuses a request with a prompt of {len(body['input_ids'])} tokens: "
                f"{read_error(response)}"
            )
        if response.status_code != HTTP_OK:
            raise ServerAway(f"{self._http.url} answers a request with {read_error(response)}")
        found: dict[str, Any] = response.json()
        own = self._pauses - pauses
        self._retractions += max(0, int(found["meta_info"].get("num_retractions") or 0) - own)
        return found

    async def abort(self, request_id: str) -> None:
        """See `ServerApi.abort`."""
        await self._http.post_async("/abort_request", {"rid": request_id})

    def load(self, folder: Path, version: int) -> float:
        """See `ServerApi.load`: running requests return to the queue, and the server recomputes their KV caches."""
        began = time.perf_counter()
        self._pauses += 1
        self._post("/pause_generation", {"mode": "retract"})
        try:
            body = {"model_path": str(folder), "weight_version": str(version), "flush_cache": True}
            response = self._http.call("POST", "/update_weights_from_disk", body, LOAD_LIMIT_S)
            if response.status_code != HTTP_OK or not response.json().get("success"):
                raise WeightsRefused(f"{self._http.url} does not load version {version}: {read_error(response)}")
        finally:
            self._post("/continue_generation", {})
        return time.perf_counter() - began

    def note_started(self, folder: Path, version: int) -> None:
        """See `ServerApi.note_started`: nothing to do, as its command names the version."""

    def read_weight_version(self) -> str:
        """See `ServerApi.read_weight_version`."""
        return str(self._read("/model_info")["weight_version"])

    def read_load(self) -> ServerLoad:
        """See `ServerApi.read_load`."""
        loads = self._read("/v1/loads")["loads"]
        names = ("num_running_reqs", "num_waiting_reqs", "num_used_tokens", "max_total_num_tokens")
        # SGLang reports retractions in every answer; elsewhere only if its metrics are on.
        running, waiting, used, capacity = (sum(int(one.get(name, 0)) for one in loads) for name in names)
        return ServerLoad(running, waiting, used, capacity, self._retractions)

    def is_ready(self) -> bool:
        """See `ServerApi.is_ready`: the server generates one token."""
        try:
            return self._http.call("GET", "/health_generate", limit_s=READY_LIMIT_S).status_code == HTTP_OK
        except ServerAway:
            return False

    def close(self) -> None:
        """See `ServerApi.close`."""
        self._http.close()

    def _read(self, path: str) -> Any:
        return self._check(path, self._http.call("GET", path, limit_s=LOOK_LIMIT_S)).json()

    def _post(self, path: str, body: dict[str, Any]) -> None:
        self._check(path, self._http.call("POST", path, body))

    def _check(self, path: str, response: httpx2.Response) -> httpx2.Response:
        if response.status_code == HTTP_NOT_FOUND:
            raise ServerAway(f"{self._http.url}{path} answers HTTP 404: is this an SGLang server, 0.5.19 or newer?")
        if response.status_code != HTTP_OK:
            raise ServerAway(f"{self._http.url}{path} answers {read_error(response)}")
        return response


def build_parameters(sampling: Sampling) -> dict[str, Any]:
    """Return the sampling by SGLang's names. The tokens that end a generation stay in it as its last tokens."""
    return {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "stop_token_ids": list(sampling.stop_ids),
        "stop": list(sampling.stop),
        # The recipe's stop tokens include the model's own end token if it should stop there. This key disables both.
        "ignore_eos": not sampling.stop_ids,
        "no_stop_trim": True,
        "skip_special_tokens": False,
    }


def read_answer(found: dict[str, Any], stop_ids: Sequence[int]) -> Answer:
    """Return an answer of `/generate`. Raises EngineError where ids, log-probabilities and versions do not agree.

    Raises ServerAway for tokens of weights that a server was started with.

    An answer that ended with a token outside `stop_ids` (the model's own end token) counts as aborted, so it continues.
    """
    meta, ids = found["meta_info"], np.asarray(found["output_ids"], np.int32)
    token_logprobs = meta.get("output_token_logprobs") or []
    logprobs = np.asarray([one[0] for one in token_logprobs], np.float32)
    if len(logprobs) != len(ids) or any(
        one[1] != token for one, token in zip(token_logprobs, ids.tolist(), strict=True)
    ):
        which = " other" if len(logprobs) == len(ids) else ""
        raise EngineError(
            f"SGLang returned {len(ids)} tokens, but log-probabilities of {len(logprobs)}{which} tokens: {USE_TESTED}"
        )
    spans = meta.get("weight_versions") if len(ids) else []
    if spans is None:
        raise EngineError(
            "SGLang's answer lacks `weight_versions`, the version of each token: use SGLang 0.5.19 or newer"
        )
    runs = tuple((read_label(one["version"]), int(one["end"]) - int(one["start"])) for one in spans)
    if sum(length for _, length in runs) != len(ids):
        labelled = sum(length for _, length in runs)
        raise EngineError(f"SGLang returned {len(ids)} tokens, but the versions of {labelled} tokens: {USE_TESTED}")
    reason = meta["finish_reason"]
    ended = {"stop": "stop", "length": "length"}.get(reason["type"], "aborted")
    if ended == "stop" and isinstance(reason.get("matched"), int) and reason["matched"] not in stop_ids:
        ended = "aborted"
    made = tuple(run for run in runs if run[1])
    return Answer(ids, logprobs, made, ended, int(meta.get("cached_tokens", 0)))  # type: ignore[arg-type]


def read_label(label: Any) -> int:
    """Return the version that a label names. Raises ServerAway for a fresh server, EngineError for another program."""
    if label == FRESH:
        raise ServerAway("the server was started again, and has weights that this worker did not load")
    try:
        return int(label)
    except (TypeError, ValueError):
        raise EngineError(
            f"an SGLang server serves weights with the label {label!r}, but this run has no such version: "
            f"{OTHER_WEIGHTS}"
        ) from None
