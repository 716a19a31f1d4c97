"""What goes to a vLLM server, what is read from its answers, and of which version those are."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.producers.engines.contract import EngineError, Sampling
from headrace.producers.engines.registry import check_engine
from headrace.producers.engines.served.generation_server import ServedWeights
from headrace.producers.engines.served.server_api import Answer, HttpConnections, ServerAway, ServerLoad, WeightsRefused
from headrace.producers.engines.served.vllm import build_words
from headrace.producers.engines.served.vllm_api import VllmApi, build_request, read_answer, read_metrics

FOLDER = Path("weights")
CHOICE = {"token_ids": [7, 8, 9], "logprobs": {"token_logprobs": [-0.5, -1.0, -0.25]}, "finish_reason": "stop"}
METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="{m}"} 3.0
vllm:num_requests_running{engine="1",model_name="{m}"} 1.0
vllm:num_requests_waiting{engine="0",model_name="{m}"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="{m}",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="{m}"} 0.25
vllm:num_preemptions_total{engine="0",model_name="{m}"} 5.0
vllm:num_preemptions_total{engine="1",model_name="{m}"} 2.0
vllm:cache_config_info{mamba_block_size="5",block_size="16",num_cpu_blocks="None",num_gpu_blocks="100"} 1.0
"""


class Server:
    """A server in memory: a request is open until it is ended, or told to be ready."""

    def __init__(self) -> None:
        self.url = "http://vllm"
        self.label = "default"
        self.calls: list[str] = []
        self.open: list[str] = []
        self.overtaken = 0
        """Orders to end requests that come before these."""
        self.first_logprob = 0.0
        self.missing = ""
        self.ready = asyncio.Event()
        self.ended = False

    def call(self, _method: str, path: str, body: Any = None, _limit_s: float = 0.0) -> httpx2.Response:
        self.calls.append(path.partition("?")[0])
        if path == self.missing:
            return httpx2.Response(404)
        if path == "/v1/completions":
            found = CHOICE | {"logprobs": {"token_logprobs": [self.first_logprob]}}
            return httpx2.Response(200, json={"choices": [found]})
        if path == "/abort_requests":
            self.overtaken -= 1
            self.ended = self.ended or self.overtaken < 0
        if path == "/update_weight_version":
            self.label = body["new_version"]
        return httpx2.Response(200, json={"success": True, "weight_version": self.label})

    async def post_async(self, path: str, body: Any) -> httpx2.Response:
        if path == "/abort_requests":
            self.open = body["request_ids"]
            return self.call("POST", path, body)
        while not (self.ended or self.ready.is_set()):  # noqa: ASYNC110 - another thread ends it
            await asyncio.sleep(0.001)
        choice = CHOICE if self.ready.is_set() else CHOICE | {"finish_reason": "abort"}
        self.calls.append("answer")
        return httpx2.Response(200, json={"choices": [choice]})

    async def get_async(self, path: str) -> httpx2.Response:
        return self.call("GET", path)


def connect(server: Server) -> VllmApi:
    return VllmApi(cast("HttpConnections", server))


async def ask(api: VllmApi) -> Answer:
    return await api.generate("r", [1, 2], Sampling(max_tokens=9))


def test_a_swap_waits_for_the_answers_of_the_weights_before_and_asks_for_none_meanwhile() -> None:
    server = Server()
    server.overtaken = 2
    api = connect(server)

    async def scenario() -> tuple[Answer, Answer, Answer]:
        api.load(FOLDER, 3)
        server.calls.clear()
        open_one = asyncio.create_task(ask(api))
        await asyncio.sleep(0)
        loading = asyncio.create_task(asyncio.to_thread(api.load, FOLDER, 4))
        while "/abort_requests" not in server.calls:  # noqa: ASYNC110 - another thread calls
            await asyncio.sleep(0.001)
        refused = await ask(api)
        before = await open_one
        await loading
        server.ready.set()
        return refused, before, await ask(api)

    refused, before, after = asyncio.run(scenario())
    assert (refused.ids.tolist(), refused.version_runs, refused.ended) == ([], (), "aborted")
    assert (before.version_runs, before.ended) == (((3, 3),), "aborted")
    assert (after.version_runs, after.ended) == (((4, 3),), "stop")
    calls = [call for call in server.calls if call != "/abort_requests"]
    swap = ["/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume", "/v1/completions"]
    assert calls == ["/pause", "answer", "/weight_info", *swap, "answer", "/weight_info"]


def test_an_order_to_end_a_request_is_given_again_until_the_request_is_over() -> None:
    server = Server()
    server.overtaken = 2
    api = connect(server)

    async def scenario() -> Answer:
        api.note_started(Path(), 3)
        asking = asyncio.create_task(ask(api))
        await asyncio.sleep(0)
        await api.abort("r")
        return await asking

    assert asyncio.run(scenario()).ended == "aborted"
    assert (server.open, server.calls.count("/abort_requests")) == (["cmpl-r-0"], 3)


@pytest.mark.parametrize(
    ("label", "error", "why"),
    [
        ("default", ServerAway, "was started again, and has weights that this worker did not load"),
        ("4", EngineError, "weights of version 4, but this worker did not ask for them"),
    ],
)
def test_an_answer_of_a_server_that_has_other_weights_now_is_none(label: str, error: type, why: str) -> None:
    server = Server()
    api = connect(server)
    api.note_started(Path(), 3)
    server.label = label
    server.ready.set()
    with pytest.raises(error, match=why):
        asyncio.run(ask(api))


def test_a_server_with_other_log_probabilities_or_without_its_development_mode_is_refused() -> None:
    server = Server()
    server.first_logprob = -0.7
    with pytest.raises(WeightsRefused, match="start it with --logprobs-mode processed_logprobs"):
        connect(server).note_started(Path(), 3)
    server.missing = "/pause?mode=abort"
    with pytest.raises(WeightsRefused, match="started with VLLM_SERVER_DEV_MODE=1"):
        connect(server).load(FOLDER, 3)


def test_an_answer_whose_parts_do_not_agree_is_refused() -> None:
    assert read_answer({"choices": [CHOICE]}, 3).logprobs.tolist() == [-0.5, -1.0, -0.25]
    for logprobs in (None, {"token_logprobs": [-0.5]}):
        found = {"choices": [deepcopy(CHOICE) | {"logprobs": logprobs}]}
        with pytest.raises(EngineError, match=r"returned 3 tokens, but log-probabilities of [01] tokens:"):
            read_answer(found, 3)


def test_a_request_ends_by_the_stop_tokens_of_the_recipe_alone_and_is_drawn_without_penalties() -> None:
    told = build_request("r", [1], Sampling(max_tokens=9, stop_ids=(2,), stop=("</a>",)))
    assert (told["stop_token_ids"], told["stop"], told["ignore_eos"]) == ([2], ["</a>"], True)
    assert (told["repetition_penalty"], told["top_k"], told["temperature"]) == (1.0, 0, 1.0)


def test_the_load_of_a_server_is_read_from_its_metrics() -> None:
    assert read_metrics(METRICS) == ServerLoad(4, 2, 400, 1600, 7)
    assert read_metrics("") == ServerLoad(0, 0, 0)


def test_each_server_draws_by_a_seed_of_its_own() -> None:
    one, other = (build_words(ServedWeights(7, FOLDER), 30000, 32) for _ in range(2))
    assert one[:4] == ["-m", "vllm.entrypoints.cli.main", "serve", "weights"]
    assert " ".join(one).endswith("--generation-config vllm --seed " + one[-1])
    assert one[-1] != other[-1]


def test_a_recipe_is_told_what_vllm_takes() -> None:
    for words, why in (
        ("serves=2", "rollout.engine, vllm: no option 'serves'; the options are servers, .*python"),
        ("servers=1", "no program 'python9'"),
    ):
        with pytest.raises(UsageError, match=why):
            check_engine(load_recipe("arithmetic", [f'rollout.engine={{use="vllm",python="python9",{words}}}']))
