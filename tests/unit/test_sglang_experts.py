"""The experts of tokens that an SGLang server returns, and requests that end before a swap."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any, cast

import httpx2
import numpy as np
import pytest
import transformers

from headrace.infra.weights.experts import ExpertLayers
from headrace.producers.engines.contract import EngineError, Sampling
from headrace.producers.engines.served.model_shapes import ModelShapes
from headrace.producers.engines.served.served_engine import _join_answers
from headrace.producers.engines.served.server_api import NOTHING, Answer, HttpConnections, WeightsRefused
from headrace.producers.engines.served.sglang_experts import SGLangExperts, read_routing

EXPERTS = ExpertLayers(layers=(0, 2), all_layers=3, experts=300, per_token=2)
SAMPLING = Sampling(max_tokens=9)
FOLDER = Path("weights")


def encode(tokens: int) -> str:
    """Number the experts of all tokens and layers."""
    return base64.b64encode(np.arange(tokens * 3 * 2, dtype="<i4").tobytes()).decode()


class Server:
    """A server in memory: a request is open until it is ended."""

    def __init__(self) -> None:
        self.url = "http://sglang"
        self.calls: list[str] = []
        self.refuses = False
        self.is_held = False
        """Whether requests that were ended are not answered yet."""

    def call(self, _method: str, path: str, _body: Any = None, limit_s: float = 0.0) -> httpx2.Response:
        self.calls.append(path)
        is_refused = self.refuses and path == "/update_weights_from_disk"
        return httpx2.Response(400 if is_refused else 200, json={"success": not is_refused})

    async def post_async(self, _path: str, body: dict[str, Any]) -> httpx2.Response:
        while self.is_held or "/abort_request" not in self.calls:  # noqa: ASYNC110 - another thread calls
            await asyncio.sleep(0.001)
        self.calls.append("answer")
        meta = {
            "finish_reason": {"type": "abort"},
            "output_token_logprobs": [[-0.5, 7, None], [-1.0, 8, None]],
            "weight_versions": [{"version": "3", "start": 0, "end": 2}],
            "routed_experts": encode(len(body["input_ids"]) + 1),
        }
        return httpx2.Response(200, json={"output_ids": [7, 8], "meta_info": meta})


def connect(server: Server) -> SGLangExperts:
    return SGLangExperts(cast("HttpConnections", server), EXPERTS)


async def ask(api: SGLangExperts) -> Answer:
    return await api.generate("r", [1, 2, 3], SAMPLING)


def test_requests_end_before_a_swap_with_the_experts_of_the_weights_before_and_none_begins_meanwhile() -> None:
    server = Server()
    server.is_held = True
    api = connect(server)

    async def play() -> tuple[Answer, Answer]:
        assert await ask(api) is NOTHING, "nothing is asked before there are weights"
        api.note_started(FOLDER, 3)
        asking = asyncio.create_task(ask(api))
        await asyncio.sleep(0)
        loading = asyncio.create_task(asyncio.to_thread(api.load, FOLDER, 4))
        while "/abort_request" not in server.calls and not loading.done():  # noqa: ASYNC110 - another thread calls
            await asyncio.sleep(0.001)
        assert not loading.done(), "it waits for the requests"
        refused = await ask(api)
        server.is_held = False
        before = await asking
        await loading
        return refused, before

    refused, before = asyncio.run(play())
    assert refused is NOTHING
    assert before.routing is not None
    assert (before.ended, before.routing.shape) == ("aborted", (4, 2, 2))
    swap = ["answer", "/pause_generation", "/update_weights_from_disk", "/continue_generation"]
    assert [call for call in server.calls if call != "/abort_request"] == swap


def test_requests_begin_again_after_weights_that_were_refused() -> None:
    server = Server()
    server.refuses = True
    api = connect(server)
    with pytest.raises(WeightsRefused):
        api.load(FOLDER, 4)
    server.calls.append("/abort_request")
    assert asyncio.run(ask(api)).ids.tolist() == [7, 8]


def test_the_experts_of_an_answer_are_those_of_the_layers_that_have_experts() -> None:
    found = read_routing(encode(2), EXPERTS, 2)
    assert found.dtype == np.uint16
    assert found.tolist() == [[[0, 1], [4, 5]], [[6, 7], [10, 11]]]
    with pytest.raises(EngineError, match="start it with --enable-return-routed-experts"):
        read_routing(None, EXPERTS, 2)
    with pytest.raises(EngineError, match=r"12 expert ids for 3 tokens, but .* has 3 layers and uses 2 experts"):
        read_routing(encode(2), EXPERTS, 3)


def test_a_token_keeps_the_experts_of_the_piece_that_had_it_first() -> None:
    ids, logprobs = np.zeros(2, np.int32), np.zeros(2, np.float32)
    first, second = (np.full((tokens, 1, 1), expert, np.uint8) for tokens, expert in ((4, 1), (6, 2)))
    pieces = [Answer(ids, logprobs, ((3, 2),), "aborted", routing=first), NOTHING]
    pieces.append(Answer(ids, logprobs, ((4, 2),), "stop", routing=second))
    joined = _join_answers(pieces, "stop")
    assert joined.routing is not None
    assert joined.routing.ravel().tolist() == [1, 1, 1, 1, 2, 2]
    assert _join_answers([NOTHING], "cancelled").routing is None


def test_the_layers_with_experts_are_found_in_a_model(tmp_path: Path) -> None:
    config = transformers.Qwen3MoeConfig(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        moe_intermediate_size=8,
        num_hidden_layers=3,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        mlp_only_layers=[1],
    )
    config.save_pretrained(tmp_path)
    found = ModelShapes(tmp_path).experts
    assert found == ExpertLayers(layers=(0, 2), all_layers=3, experts=4, per_token=2)
    assert found.dtype is np.uint8
