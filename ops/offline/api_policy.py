"""A model behind an OpenAI-compatible endpoint as the policy of a trial: it sees messages and tools, no tokens.

Workflows work with tokens. So each character is a token here, and the chat template writes JSON, from which the engine
reads the messages again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np
import numpy.typing as npt

from headrace.envs.messages import as_messages
from headrace.envs.tool_calls import ToolCall, parse_tool_calls
from headrace.infra.errors import UsageError
from headrace.producers.engines.contract import (
    LOGPROB_CONVENTION,
    EngineAway,
    EngineError,
    EngineStats,
    FinishReason,
    Generation,
    KvOnSwap,
    LogprobConvention,
    Sampling,
)

TOOLS, GIVEN, ANSWER, END = "\ue000", "\ue001", "\ue002", "\ue003"
"""Marks before tools, a message and an answer, and after an answer: characters of the private use area."""
_OWN = str.maketrans("", "", TOOLS + GIVEN + ANSWER + END + "\0")
"""Leaves out marks, and NUL, at which `_split` cuts."""
CONTEXT = 10_000_000
HTTP_OK = 200


@dataclass(frozen=True, slots=True)
class Api:
    """An endpoint."""

    url: str
    """Base address, such as `https://host/v1`."""
    model: str
    key: str = ""
    limit_s: float = 120.0
    """Seconds for one answer."""

    def __post_init__(self) -> None:
        """Raise UsageError for an address that is none."""
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"--api must be an address such as http://localhost:8000/v1, got {self.url!r}")


class MessageText:
    """See `TextCodec`: a token is a character, and conversations are rendered as JSON."""

    hash = "api"
    stop_ids: tuple[int, ...] = (ord(END),)
    context = CONTEXT

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        template_arguments: Mapping[str, Any] | None = None,  # noqa: ARG002 - the template is the endpoint's
    ) -> str:
        """Return messages as text, each after its mark."""
        shown = TOOLS + json.dumps(list(tools), ensure_ascii=False) if tools else ""
        return shown + "".join(map(_render_message, messages)) + ANSWER

    def encode(self, text: str) -> list[int]:
        """Return the ids of a user's turn."""
        return self.encode_plain(self.render(as_messages(text)))

    def encode_plain(self, text: str) -> list[int]:
        """Return the code points of a text."""
        return list(map(ord, text))

    def encode_rendered(self, text: str) -> list[int]:
        """Return the code points of a rendered conversation."""
        return self.encode_plain(text)

    def decode(self, ids: Sequence[int] | npt.NDArray[np.int32], *, special_tokens: bool = False) -> str:
        """Return the text of code points, without marks or with them."""
        text = "".join(map(chr, map(int, ids)))
        return text if special_tokens else text.translate(_OWN)


def _render_message(message: Mapping[str, Any]) -> str:
    if message["role"] == "assistant" and not message.get("tool_calls"):
        return f"{ANSWER}{message['content'].translate(_OWN)}{END}"
    return f"{GIVEN}{json.dumps(message, ensure_ascii=False).translate(_OWN)}"


def read_messages(text: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the messages and the tools of a rendered conversation; answers as plain texts."""
    messages: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    for part in _split(text):
        mark, rest = part[0], part[1:]
        if mark == TOOLS:
            tools = json.loads(rest)
        elif mark == GIVEN:
            messages.append(json.loads(rest))
        elif rest:  # an answer; the last mark only asks for one
            messages.append({"role": "assistant", "content": rest.rstrip(END)})
    return messages, tools


def _split(text: str) -> list[str]:
    for mark in (TOOLS, GIVEN, ANSWER):
        text = text.replace(mark, f"\0{mark}")
    return text.split("\0")[1:]


def show_calls(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with the calls of answers as an API has them, and with the call that each result belongs to.

    An API has no invalid calls: their results become messages of the user, after the results of the others.
    """
    shown: list[dict[str, Any]] = []
    waiting: list[str] = []
    """Ids of the calls that wait for a result; empty ones of invalid calls."""
    of_invalid: list[dict[str, Any]] = []
    for message in messages:
        made = dict(message)
        if message["role"] != "tool":
            shown, of_invalid = [*shown, *of_invalid], []
        if message["role"] == "assistant" and not message.get("tool_calls"):
            calls = parse_tool_calls(message["content"])
            waiting = [f"call_{len(shown)}_{at}" * isinstance(call, ToolCall) for at, call in enumerate(calls)]
            both = zip(waiting, calls, strict=True)
            if written := [_write_call(name, call) for name, call in both if isinstance(call, ToolCall)]:
                made |= {"content": message["content"].partition("<tool_call>")[0], "tool_calls": written}
        elif message["role"] == "tool" and waiting:
            if not (name := waiting.pop(0)):
                of_invalid.append({"role": "user", "content": message["content"]})
                continue
            made["tool_call_id"] = name
        shown.append(made)
    return shown + of_invalid


def _write_call(name: str, call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": name, "type": "function", "function": {"name": call.name, "arguments": arguments}}


class ApiEngine:
    """See `Engine`: it asks an endpoint for each answer. Log-probabilities are 0, so nothing can be trained on it."""

    logprob_convention: LogprobConvention = LOGPROB_CONVENTION
    kv_on_swap: KvOnSwap = "recompute"

    def __init__(self, api: Api) -> None:
        self._api = api
        headers = {"Authorization": f"Bearer {api.key}"} if api.key else {}
        self._client = httpx2.AsyncClient(headers=headers, timeout=api.limit_s)

    async def generate(
        self,
        policy: str,  # noqa: ARG002 - one model plays all policies
        ids: Sequence[int],
        sampling: Sampling,
        *,
        seed: int,  # noqa: ARG002 - few endpoints take one
        version: int | None = None,  # noqa: ARG002
        deadline_s: float | None = None,  # noqa: ARG002 - the limit of an answer is the endpoint's
    ) -> Generation:
        """See `Engine.generate`. Raises EngineAway for an endpoint that is away, EngineError for one that refuses."""
        messages, tools = read_messages("".join(map(chr, ids)))
        body: dict[str, Any] = {
            "model": self._api.model,
            "messages": show_calls(messages),
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
        }
        if tools:
            body["tools"] = tools
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        url = f"{self._api.url.rstrip('/')}/chat/completions"
        try:
            answer = await self._client.post(url, json=body)
        except httpx2.HTTPError as error:
            raise EngineAway(f"{url} cannot be reached: {type(error).__name__} {error}".rstrip()) from error
        if answer.status_code != HTTP_OK:
            raise EngineError(f"{url} refused the request: HTTP {answer.status_code}: {answer.text[:400]}")
        text, reason = _read_answer(url, answer)
        said = np.array([*map(ord, text.translate(_OWN)), *([ord(END)] if reason == "stop" else [])], np.int32)
        return Generation(said, np.zeros(said.size, np.float32), ((0, said.size),), reason)

    def load(self, policy: str, version: int, weights: Mapping[str, Any]) -> None:
        """Do nothing: the weights are the endpoint's."""

    def hold(self, policy: str, version: int, weights: Mapping[str, Any] | None = None) -> None:
        """Do nothing."""

    def release(self, policy: str, version: int) -> None:
        """Do nothing."""

    def versions(self) -> dict[str, int]:
        """Return nothing: versions are unknown."""
        return {}

    def stats(self) -> EngineStats:
        """Return zeros."""
        return EngineStats(0, 0, 0, 0, 0, 0.0)

    def close(self) -> None:
        """Do nothing: connections end with the event loop."""


def _read_answer(url: str, answer: httpx2.Response) -> tuple[str, FinishReason]:
    """Return the text of an answer with its calls in the form of Hermes. Raises EngineError."""
    try:
        choice = answer.json()["choices"][0]
        message = choice["message"]
        calls = [_write_as_given(call["function"]) for call in message.get("tool_calls") or ()]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise EngineError(f"{url} did not answer with a chat completion: {answer.text[:400]}") from error
    text = "\n".join([*filter(None, [message.get("content")]), *calls])
    return text, "length" if choice.get("finish_reason") == "length" else "stop"


def _write_as_given(function: Mapping[str, Any]) -> str:
    """Return a call in the form of Hermes; arguments that are no JSON stay as they are, a bad call of the policy."""
    given = function["arguments"] or "{}"
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>{{"name": {name}, "arguments": {arguments}}}</tool_call>'
