"""The HTTP interface of a vLLM server in development mode, 0.32 or newer (https://docs.vllm.ai).

Log-probabilities are those of `--logprobs-mode processed_logprobs`: of the distribution that the token was drawn from,
over the tokens that top-p, top-k and min-p leave. vLLM's default is `raw_logprobs`, of the logits before the
temperature: training cannot use them at other temperatures than 1, so a server that returns them is refused.

An answer does not say which weights made it. So a load ends all requests, waits for their answers, each with its
tokens so far, and only then swaps the weights. Each answer therefore belongs to one version: the version that was
loaded when the request was sent. The engine continues from its tokens, with one more request for each swap during a
generation; the prefix is recomputed, as new weights require anyway. After each answer one more call checks that the
server still has these weights; it waits for one step of the model at most.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import httpx2
import numpy as np

from headrace.producers.engines.contract import EngineError, Sampling
from headrace.producers.engines.served.open_requests import AGAIN_S, ANSWERS_LIMIT_S, OpenRequests
from headrace.producers.engines.served.server_api import (
    FRESH,
    NOTHING,
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
LOGPROBS_MODE = "processed_logprobs"


class VllmApi:
    """Implements `ServerApi`. `load` waits for answers: never call it in the thread whose loop awaits `generate`."""

    def __init__(self, connections: HttpConnections) -> None:
        self._http = connections
        self._version = 0
        """The server's version while requests are admitted: from the first load on, except during a swap."""
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
            return await self.ask(request_id, ids, sampling, self._version)
        finally:
            self._requests.note_end(request_id)

    async def ask(self, request_id: str, ids: Sequence[int], sampling: Sampling, version: int, **words: str) -> Answer:
        """Post a request, with further keys in its body; return its answer as one of the given version.

        Raises EngineError if the server refuses the request, and ServerAway, also if the server's weights have changed
        since the request was sent.
        """
        label = self._version
        body = {**build_request(request_id, ids, sampling), **words}
        response = await self._http.post_async("/v1/completions", body)
        if response.status_code == HTTP_BAD_REQUEST:
            raise EngineError(
                f"{self._http.url} refuses a request with a prompt of {len(ids)} tokens: {read_error(response)}"
            )
        if response.status_code != HTTP_OK:
            raise ServerAway(f"{self._http.url} answers a request with {read_error(response)}")
        answer = read_answer(response.json(), version)
        found = self._check("/weight_info", await self._http.get_async("/weight_info")).json()
        self._check_label(found, label)
        return answer

    async def abort(self, request_id: str) -> None:
        """See `ServerApi.abort`."""
        while self._is_open(request_id):
            await self._http.post_async("/abort_requests", {"request_ids": [name_in_server(request_id)]})
            await asyncio.sleep(AGAIN_S)

    def load(self, folder: Path, version: int) -> float:
        """See `ServerApi.load`; a failed load stops the server."""
        began = time.perf_counter()
        self._requests.stop_admitting()
        self._post("/pause?mode=abort")
        # Requests that come during the pause would wait for its end.
        self._requests.end_all(lambda: self._post("/abort_requests", {}))
        words = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        self._post("/collective_rpc", words, LOAD_LIMIT_S)
        if not self._post("/reset_prefix_cache").get("success"):
            raise ServerAway(f"{self._http.url} did not reset its prefix cache when weights were loaded")
        self._post("/update_weight_version", {"new_version": str(version)})
        self._post("/resume")
        self._check_convention_and_admit(version)
        return time.perf_counter() - began

    def note_started(self, folder: Path, version: int) -> None:  # noqa: ARG002 - its command names the folder
        """See `ServerApi.note_started`."""
        self._post("/update_weight_version", {"new_version": str(version)})
        self._check_convention_and_admit(version)

    def read_weight_version(self) -> str:
        """See `ServerApi.read_weight_version`."""
        return str(self._read("/weight_info").json()["weight_version"])

    def read_load(self) -> ServerLoad:
        """See `ServerApi.read_load`."""
        return read_metrics(self._read("/metrics").text)

    def is_ready(self) -> bool:
        """See `ServerApi.is_ready`."""
        try:
            return self._http.call("GET", "/health").status_code == HTTP_OK
        except ServerAway:
            return False

    def close(self) -> None:
        """See `ServerApi.close`."""
        self._http.close()

    def _is_open(self, request_id: str) -> bool:
        return request_id in self._requests

    def _check_convention_and_admit(self, version: int) -> None:
        """Admit requests for a version. Raises WeightsRefused if the server has another log-probability convention."""
        # Only one token is allowed, so its probability is 1, unless the server computes it before the filters.
        words = {"prompt": [0], "max_tokens": 1, "temperature": 1.0, "allowed_token_ids": [1], "logprobs": 0}
        found = self._post("/v1/completions", words)["choices"][0]["logprobs"]["token_logprobs"]
        if found != [0.0]:
            raise WeightsRefused(
                f"{self._http.url} returns log-probabilities of a distribution that it does not sample from: "
                f"start it with --logprobs-mode {LOGPROBS_MODE}"
            )
        self._version = version
        self._requests.begin_admitting()

    def _check_label(self, found: dict[str, Any], version: int) -> None:
        label = found["weight_version"]
        if label == FRESH:
            raise ServerAway(f"{self._http.url} was started again, and has weights that this worker did not load")
        if label != str(version):
            raise EngineError(
                f"{self._http.url} answered with weights of version {label}, but this worker did not ask for them: "
                "another process loads weights into this server; give each worker a server of its own"
            )

    def _read(self, path: str) -> httpx2.Response:
        return self._check(path, self._http.call("GET", path))

    def _post(self, path: str, body: dict[str, Any] | None = None, limit_s: float = ANSWERS_LIMIT_S) -> Any:
        return self._check(path, self._http.call("POST", path, body, limit_s)).json()

    def _check(self, path: str, response: httpx2.Response) -> httpx2.Response:
        if response.status_code == HTTP_NOT_FOUND:
            raise WeightsRefused(
                f"{self._http.url}{path} answers HTTP 404: use vLLM 0.32 or newer, started with VLLM_SERVER_DEV_MODE=1"
            )
        if response.status_code != HTTP_OK:
            raise ServerAway(f"{self._http.url}{path} answers {read_error(response)}")
        return response


def build_request(request_id: str, ids: Sequence[int], sampling: Sampling) -> dict[str, Any]:
    """Return the body of a request. It sets every value for which vLLM has its own default."""
    return {
        "request_id": request_id,
        "prompt": list(map(int, ids)),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        # The recipe's stop tokens include the model's own end token if it should stop there.
        "ignore_eos": True,
        "stop_token_ids": list(sampling.stop_ids),
        "stop": list(sampling.stop),
        "skip_special_tokens": False,
        "logprobs": 0,
        "return_token_ids": True,
    }


def name_in_server(request_id: str) -> str:
    """Return vLLM's id of a request: that of the first prompt of a completion."""
    return f"cmpl-{request_id}-0"


def read_answer(found: dict[str, Any], version: int) -> Answer:
    """Return an answer of `/v1/completions`. Raises EngineError where ids and log-probabilities do not agree."""
    [choice] = found["choices"]
    ids = np.asarray(choice["token_ids"], np.int32)
    logprobs = np.asarray((choice["logprobs"] or {}).get("token_logprobs", ()), np.float32)
    if len(logprobs) != len(ids):
        raise EngineError(
            f"vLLM returned {len(ids)} tokens, but log-probabilities of {len(logprobs)} tokens: use a version of vLLM "
            "that docs/engines.md lists as tested"
        )
    ends: dict[str, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}
    runs = ((version, len(ids)),) if len(ids) else ()
    return Answer(ids, logprobs, runs, ends.get(choice["finish_reason"], "aborted"))


def read_metrics(text: str) -> ServerLoad:
    """Return the load of a server, from the text of its metrics page."""

    def add(name: str) -> float:
        return sum(float(value) for value in re.findall(rf"^vllm:{name}\{{.*\}} (\S+)$", text, re.MULTILINE))

    size, engines = 1, len(re.findall(r"^vllm:kv_cache_usage_perc\{", text, re.MULTILINE))
    for name in ("num_gpu_blocks", "block_size"):
        found = re.search(rf'[{{,]{name}="(\d+)"', text)
        size *= int(found[1]) if found else 0
    return ServerLoad(
        int(add("num_requests_running")),
        int(add("num_requests_waiting")),
        round(add("kv_cache_usage_perc") * size),
        size * engines,
        int(add("num_preemptions_total")),
    )
