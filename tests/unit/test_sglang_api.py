"""What goes to an SGLang server, and what is read from its answers."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest

from headrace.producers.engines.contract import EngineError, Sampling
from headrace.producers.engines.served.server_api import HttpConnections, ServerAway, ServerLoad
from headrace.producers.engines.served.sglang_api import SGLangApi, build_parameters, read_answer

ANSWER: dict[str, Any] = {
    "output_ids": [7, 8, 9],
    "meta_info": {
        "finish_reason": {"type": "stop", "matched": 9},
        "output_token_logprobs": [[-0.5, 7, None], [-1.0, 8, None], [-0.25, 9, None]],
        "weight_versions": [
            {"version": "3", "start": 0, "end": 2},
            {"version": "4", "start": 2, "end": 2},
            {"version": "5", "start": 2, "end": 3},
        ],
    },
}


def changed(**meta: Any) -> dict[str, Any]:
    found = deepcopy(ANSWER)
    found["meta_info"] |= meta
    return found


def test_every_token_of_an_answer_has_the_version_that_made_it() -> None:
    answer = read_answer(ANSWER, (9,))
    assert (answer.ids.tolist(), answer.logprobs.tolist()) == ([7, 8, 9], [-0.5, -1.0, -0.25])
    assert (answer.version_runs, answer.ended) == (((3, 2), (5, 1)), "stop")


@pytest.mark.parametrize(
    ("given", "ended"), [("stop", "stop"), ("length", "length"), ("abort", "aborted"), ("new in 0.6", "aborted")]
)
def test_an_end_that_is_not_known_is_that_of_a_request_which_goes_on(given: str, ended: str) -> None:
    assert read_answer(changed(finish_reason={"type": given}), ()).ended == ended


def test_the_end_of_the_model_itself_ends_nothing_that_the_recipe_does_not_end_there() -> None:
    assert read_answer(ANSWER, (2,)).ended == "aborted"
    assert read_answer(changed(finish_reason={"type": "stop", "matched": "</a>"}), ()).ended == "stop"
    assert [build_parameters(Sampling(max_tokens=9, stop_ids=ids))["ignore_eos"] for ids in ((), (2,))] == [True, False]


def test_an_answer_aborted_before_its_first_token_is_empty() -> None:
    found = {"output_ids": [], "meta_info": {"finish_reason": {"type": "abort"}, "output_token_logprobs": []}}
    answer = read_answer(found, ())
    assert (len(answer.ids), answer.version_runs, answer.ended) == (0, (), "aborted")


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        ({"output_token_logprobs": [[-0.5, 7, None]]}, "3 tokens, but log-probabilities of 1"),
        (
            {"output_token_logprobs": [[-0.5, 1, None], [-1.0, 8, None], [-0.25, 9, None]]},
            "but log-probabilities of 3 other tokens",
        ),
        ({"output_token_logprobs": None}, "of 0"),
        ({"weight_versions": None}, "use SGLang 0.5.19 or newer"),
        ({"weight_versions": [{"version": "3", "start": 0, "end": 2}]}, "3 tokens, but the versions of 2"),
        (
            {"weight_versions": [{"version": "theirs", "start": 0, "end": 3}]},
            "'theirs', but this run has no such version: another process loads",
        ),
    ],
)
def test_an_answer_whose_parts_do_not_agree_is_refused(meta: dict[str, Any], why: str) -> None:
    with pytest.raises(EngineError, match=why):
        read_answer(changed(**meta), (9,))


def test_an_answer_of_a_server_that_was_started_again_is_none() -> None:
    with pytest.raises(ServerAway, match="was started again, and has weights that this worker did not load"):
        read_answer(changed(weight_versions=[{"version": "default", "start": 0, "end": 3}]), (9,))


def test_what_ends_a_generation_stays_in_it_and_no_limit_is_told_as_none() -> None:
    told = build_parameters(Sampling(max_tokens=9, stop_ids=(2,), stop=("</a>",)))
    assert (told["stop_token_ids"], told["stop"], told["no_stop_trim"]) == ([2], ["</a>"], True)
    assert (told["max_new_tokens"], told["top_k"], told["skip_special_tokens"]) == (9, -1, False)


class Server:
    """A server in memory, whose answer counts three retractions."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()

    def call(self, _method: str, path: str, _body: Any = None, limit_s: float = 0.0) -> httpx2.Response:
        load = {"num_running_reqs": 4, "num_waiting_reqs": 2, "num_used_tokens": 400, "max_total_num_tokens": 800}
        return httpx2.Response(200, json={"loads": [load, load]} if path == "/v1/loads" else {"success": True})

    async def post_async(self, _path: str, _body: Any) -> httpx2.Response:
        await self.ready.wait()
        return httpx2.Response(200, json=changed(num_retractions=3))


def test_an_sglang_that_lacks_an_endpoint_is_said_to_be_too_old() -> None:
    server: Any = SimpleNamespace(url="http://s", call=lambda *_, **__: httpx2.Response(404))
    with pytest.raises(
        ServerAway, match=r"http://s/v1/loads answers HTTP 404: is this an SGLang server, 0\.5\.19 or newer"
    ):
        SGLangApi(server).read_load()


def test_the_load_of_a_server_has_the_retractions_of_answers_without_those_of_swaps() -> None:
    server = Server()
    api = SGLangApi(cast("HttpConnections", server))

    async def play() -> None:
        asking = asyncio.create_task(api.generate("r", [1], Sampling(max_tokens=9, stop_ids=(9,))))
        await asyncio.sleep(0)
        await asyncio.to_thread(api.load, Path(), 5)
        server.ready.set()
        await asking

    api.load(Path(), 4)
    asyncio.run(play())
    assert api.read_load() == ServerLoad(8, 4, 800, 1600, 2)
