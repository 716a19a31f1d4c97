"""Adapters by name over vLLM: which one a request is of, and what the server is told of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

from headrace.infra.weights.lora import build_adapter_config
from headrace.producers.engines.contract import EngineError, Sampling
from headrace.producers.engines.served.generation_server import ServedWeights
from headrace.producers.engines.served.server_api import Answer, HttpConnections, ServerAway, WeightsRefused
from headrace.producers.engines.served.vllm import build_words
from headrace.producers.engines.served.vllm_adapters import VllmAdapters, choose_rank

FOLDER = Path("weights")
SAMPLING = Sampling(max_tokens=9)


class Server:
    """A server in memory: a request is open until all are ended, or told to be ready."""

    def __init__(self) -> None:
        self.url, self.label = "http://vllm", "default"
        self.adapters: list[str] = []
        self.asked: list[str] = []
        self.ended = 0
        """How many of the requests, in order."""
        self.is_ready = False
        self.refuses = False

    def call(self, _method: str, path: str, body: Any = None, _limit_s: float = 0.0) -> httpx2.Response:
        if path == "/v1/load_lora_adapter":
            if self.refuses:
                return httpx2.Response(500, json={"error": {"message": "no room"}})
            self.adapters.append(body["lora_name"])
            return httpx2.Response(200, text="Success: added")
        if path == "/v1/unload_lora_adapter":
            self.adapters.remove(body["lora_name"])
            return httpx2.Response(200, text="Success: removed")
        if path == "/update_weight_version":
            self.label = body["new_version"]
        if path == "/abort_requests":
            self.ended = len(self.asked)
        if path == "/v1/completions":
            return httpx2.Response(200, json={"choices": [{"logprobs": {"token_logprobs": [0.0]}}]})
        return httpx2.Response(200, json={"success": True, "weight_version": self.label})

    async def post_async(self, path: str, body: Any) -> httpx2.Response:
        if path == "/abort_requests":
            return self.call("POST", path, body)
        assert body["model"] in self.adapters
        number = len(self.asked)
        self.asked.append(body["model"].partition("-")[0])
        while number >= self.ended and not self.is_ready:  # noqa: ASYNC110 - a thread changes it
            await asyncio.sleep(0.001)
        ended = "abort" if number < self.ended else "length"
        choice = {"token_ids": [7, 8], "logprobs": {"token_logprobs": [-0.5, -1.0]}, "finish_reason": ended}
        return httpx2.Response(200, json={"choices": [choice]})

    async def get_async(self, path: str) -> httpx2.Response:
        return self.call("GET", path)


def connect(server: Server) -> VllmAdapters:
    api = VllmAdapters(cast("HttpConnections", server))
    api.note_started(FOLDER, 3)
    return api


def test_a_newer_adapter_ends_requests_and_what_asks_for_a_version_gets_that_one() -> None:
    server = Server()
    api = connect(server)

    async def play() -> tuple[Answer, Answer, Answer]:
        follows = asyncio.create_task(api.generate("a", [1], SAMPLING))
        while not server.asked:  # noqa: ASYNC110 - the other task asks
            await asyncio.sleep(0.001)
        await asyncio.to_thread(api.load, FOLDER, 4)
        server.is_ready = True
        return await follows, await api.generate("b", [1], SAMPLING, 3), await api.generate("c", [1], SAMPLING)

    follows, exact, newer = asyncio.run(play())
    assert [(one.version_runs, one.ended) for one in (follows, exact, newer)] == [
        (((3, 2),), "aborted"),
        (((3, 2),), "length"),
        (((4, 2),), "length"),
    ]
    assert server.asked == ["3", "3", "4"]


def test_an_order_to_end_a_request_is_given_until_the_request_is_over() -> None:
    server = Server()
    api = connect(server)

    async def play() -> Answer:
        asking = asyncio.create_task(api.generate("a", [1], SAMPLING))
        while not server.asked:  # noqa: ASYNC110 - the other task asks
            await asyncio.sleep(0.001)
        await api.abort("a")
        return await asking

    assert asyncio.run(play()).ended == "aborted"


def test_an_adapter_that_is_not_taken_and_a_server_with_another_base_are_noticed() -> None:
    server = Server()
    api = connect(server)
    server.refuses = True
    with pytest.raises(WeightsRefused, match="/load_lora_adapter refuses the adapter of version 4: HTTP 500 no room"):
        api.load(FOLDER, 4)
    server.is_ready = True
    assert api.read_weight_version() == "3"
    for label, error in (("default", ServerAway), ("8", EngineError)):
        server.label = label
        with pytest.raises(error):
            asyncio.run(api.generate("a", [1], SAMPLING))
        assert api.read_weight_version() == label


def test_a_server_starts_with_the_base_and_room_for_adapters(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(build_adapter_config(12, 16, ["v_proj"])))
    words = " ".join(build_words(ServedWeights(3, tmp_path, Path("base")), 1, 64))
    assert " serve base " in words
    assert words.endswith("--enable-lora --max-lora-rank 16 --max-loras 4")
    assert [choose_rank(rank) for rank in (1, 8, 9, 512)] == [8, 8, 16, 512]
