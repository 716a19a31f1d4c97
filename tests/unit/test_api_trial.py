"""`headrace try --api`: a model behind an endpoint sees messages, tools and results as the API has them."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headrace.infra.errors import UsageError
from headrace.infra.recipe.recipe_file import load_recipe
from headrace.ops.offline.api_policy import Api
from headrace.ops.offline.api_trial import try_with_api
from headrace.ops.offline.trial import TrialRequest

REQUEST = TrialRequest(load_recipe("tools"), tasks=1)


def call(at: int, tool: str, /, **arguments: object) -> dict[str, Any]:
    return {"id": f"x{at}", "function": {"name": tool, "arguments": json.dumps(arguments)}}


def play_ledger(asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Look up both numbers, calculate, and answer."""
    messages = asked["messages"]
    results = [one["content"] for one in messages if one["role"] == "tool"]
    first, operation, second = messages[0]["content"][:3]
    if not results:
        made = {"content": None, "tool_calls": [call(0, "get", name=first), call(1, "get", name=second)]}
    elif len(results) == 2:
        made = {"tool_calls": [call(2, {"+": "add", "*": "mul"}[operation], a=results[0], b=int(results[1]))]}
    else:
        made = {"content": results[-1]}
    return 200, {"choices": [{"message": made, "finish_reason": "stop"}]}


@contextmanager
def serve(answer: Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]) -> Iterator[tuple[str, list[Any]]]:
    seen: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append((self.path, self.headers["Authorization"], asked))
            status, made = answer(asked)
            body = json.dumps(made).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        server.server_close()


def test_a_model_calls_tools_over_several_turns_and_is_scored() -> None:
    with serve(play_ledger) as (url, seen):
        tried = try_with_api(REQUEST, Api(url, "m", key="secret"))

    [played] = tried.played
    assert tried.is_sound
    assert (played.reward, played.parts["calls"]) == (1.0, 3)
    assert [one["role"] for one in played.conversations[0].messages] == [
        "user", "assistant", "tool", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    paths, keys, bodies = zip(*seen, strict=True)
    assert set(paths) == {"/v1/chat/completions"}
    assert set(keys) == {"Bearer secret"}
    assert [tool["function"]["name"] for tool in bodies[0]["tools"]] == ["get", "add", "mul"]
    _, said, *results, again, last = bodies[2]["messages"]
    ids = [one["id"] for one in (*said["tool_calls"], *again["tool_calls"])]
    assert [one["tool_call_id"] for one in (*results, last)] == ids, "each result names the call that it belongs to"
    assert (said["content"], json.loads(said["tool_calls"][0]["function"]["arguments"]).keys()) == ("", {"name"})


def test_an_invalid_call_is_a_bad_call_of_the_policy_and_results_of_the_others_keep_their_ids() -> None:
    def answer(asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if len(asked["messages"]) > 1:
            return 200, {"choices": [{"message": {"content": "a\0b"}, "finish_reason": "stop"}]}
        made = [{"function": {"name": "get", "arguments": '{"name": '}}, call(1, "get", name="q"), call(2, "no")]
        return 200, {"choices": [{"message": {"content": None, "tool_calls": made}, "finish_reason": "stop"}]}

    with serve(answer) as (url, seen):
        tried = try_with_api(REQUEST, Api(url, "m"))

    [played] = tried.played
    assert (played.parts["bad_calls"], played.parts["unknown_tools"]) == (1, 1)
    assert played.conversations[0].messages[-1]["content"] == "ab"
    _, said, first, second, bad = seen[-1][2]["messages"]
    ids = [one["id"] for one in said["tool_calls"]]
    assert [one["tool_call_id"] for one in (first, second)] == ids
    assert [first["name"], json.loads(said["tool_calls"][0]["function"]["arguments"])] == ["get", {"name": "q"}]
    assert (bad["role"], bad["content"][:12]) == ("user", "error: the t")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda _: (400, {"error": "no such model"}), "HTTP 400.*no such model"),
        (lambda _: (200, {"choices": []}), "did not answer with a chat completion"),
    ],
)
def test_an_endpoint_that_refuses_is_a_failure_with_what_it_said(answer: Any, told: str) -> None:
    with serve(answer) as (url, _):
        tried = try_with_api(REQUEST, Api(url, "m"))
    assert not tried.is_sound
    assert not tried.played
    [failed] = tried.failures
    assert re.search(told, failed.failure.detail)


def test_an_endpoint_that_is_away_is_said_and_wrong_options_are_refused() -> None:
    [failed] = try_with_api(REQUEST, Api("http://127.0.0.1:1/v1", "m")).failures
    assert "cannot be reached" in failed.failure.detail
    with pytest.raises(UsageError, match="--api must be an address"):
        Api("localhost", "m")
    with pytest.raises(UsageError, match="exclude each other"):
        try_with_api(TrialRequest(REQUEST.recipe, answers=["1"]), Api("http://x", "m"))
