"""An engine without a model, for the mechanics of a run where a model is too slow: streaks, staleness, lengths, order.

The engine answers the questions of `envs/scripted.py`. An answer at level l has `tokens[l]` tokens, or a number drawn
around it, and takes `seconds_per_token` for each token, however many requests run. The answer is right with probability
sigma(rate * version - difficulties[l]), where version is that of its last token. The draws depend on the request's
seed alone: the same request gets the same answer at the same version, and a right answer stays right at later versions.

The engine takes weights but does not use them. The log-probability of every token is that of a uniform choice from
the vocabulary, so a trainer's ratios mean nothing. The trainer still computes real gradients.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from headrace.envs.scripted import FILLER, Question, read_question
from headrace.producers.engines.contract import (
    KV_ON_SWAP,
    LOGPROB_CONVENTION,
    EngineError,
    EngineStats,
    FinishReason,
    Generation,
    KvOnSwap,
    LogprobConvention,
    Sampling,
    TextCodec,
    VersionGone,
    check_request,
)

SHORTEST = 2
"""Shortest answer in tokens: the answer and the stop token."""
LONGEST = 100_000
"""Longest answer in tokens, before a request's own limit."""
EARLY_S = 1e-3
"""Seconds by which a timer may fire too early; the answer still counts as complete."""


@dataclass(frozen=True, slots=True)
class ScriptedSettings:
    """Settings of the scripted engine. Raises EngineError for a value outside its range."""

    rate: float = 0.05
    """How much each version raises the logit of a right answer."""
    difficulties: Sequence[float] = (0.0, 2.0)
    """Difficulty by level: at 0, half of the answers of version 0 are right; higher is harder."""
    tokens: Sequence[int] = (4, 32)
    """Tokens of an answer by level, the stop token included."""
    spreads: Sequence[float] = ()
    """By level, sigma of the log-normal distribution of an answer's tokens, whose median is then `tokens`; by default
    all answers of a level are equally long. Longer answers than a request allows are cut."""
    seconds_per_token: float = 0.0

    def __post_init__(self) -> None:
        for name, example in (("difficulties", [0.0, 2.0]), ("tokens", [4, 32]), ("spreads", [0.5, 0.8])):
            given = getattr(self, name)
            if not isinstance(given, list | tuple) or not all(isinstance(one, int | float) for one in given):
                raise EngineError(f"{name} must be a list of numbers, as in {example}; got {given!r}")
        if not self.tokens or len(self.tokens) != len(self.difficulties):
            raise EngineError(
                "difficulties and tokens must be equally long lists, with a value for each difficulty level; got "
                f"{list(self.difficulties)} and {list(self.tokens)}"
            )
        if self.spreads and (len(self.spreads) != len(self.tokens) or min(self.spreads) < 0):
            raise EngineError(
                "spreads must be empty, or have a number from 0 on for each difficulty level; got "
                f"{list(self.spreads)} for {len(self.tokens)} levels"
            )
        if min(self.tokens) < SHORTEST or self.seconds_per_token < 0:
            raise EngineError(
                f"tokens must be at least {SHORTEST} at each level, and seconds_per_token at least 0; got "
                f"{list(self.tokens)} and {self.seconds_per_token}"
            )

    def chance(self, level: int, version: int) -> float:
        """Return the probability of a right answer."""
        return 0.5 + 0.5 * math.tanh((self.rate * version - self.difficulties[level]) / 2)

    def draw_tokens(self, level: int, seed: int) -> int:
        """Return the number of tokens of an answer."""
        sigma = self.spreads[level] if self.spreads else 0.0
        factor = random.Random(f"tokens {seed}").lognormvariate(0.0, sigma) if sigma else 1.0  # noqa: S311
        return max(SHORTEST, round(min(self.tokens[level] * factor, LONGEST)))


@dataclass(frozen=True, slots=True)
class ScriptedPolicy:
    """What the engine knows of a policy."""

    codec: TextCodec
    vocabulary: int
    """Tokens."""
    context: int
    """Tokens."""


@dataclass(slots=True, eq=False)
class _Request:
    """A call of generate that has not returned."""

    policy: str
    held: int | None
    """The exact version that the request asks for."""
    tokens: int
    """Token ids of the whole answer."""
    seconds_per_token: float
    fail: Callable[[EngineError], object]
    """May be called by any thread."""
    version: int = -1
    """Version of the next token."""
    began: float = field(default_factory=time.monotonic)
    runs: list[tuple[int, int]] = field(default_factory=list)
    """(version, tokens) of the earlier versions."""

    def count_made(self) -> int:
        """Return how many tokens are generated by now."""
        if not self.seconds_per_token:
            return self.tokens
        return min(self.tokens, int((time.monotonic() - self.began + EARLY_S) / self.seconds_per_token))

    def note_version_tokens(self) -> int:
        """Note how many tokens the current version generated; return the number of tokens of all versions."""
        made = self.count_made()
        if more := made - sum(length for _, length in self.runs):
            self.runs.append((self.version, more))
        return made


class ScriptedEngine:
    """See `headrace.producers.engines.contract.Engine`. It has no thread: requests sleep in their own event loops."""

    logprob_convention: LogprobConvention = LOGPROB_CONVENTION
    kv_on_swap: KvOnSwap = KV_ON_SWAP

    def __init__(self, policies: Mapping[str, ScriptedPolicy], settings: ScriptedSettings | None = None) -> None:
        self._policies, self._settings = dict(policies), settings or ScriptedSettings()
        self._served: dict[str, int] = {}
        self._holds: dict[tuple[str, int], int] = {}
        self._open: set[_Request] = set()
        self._generated = self._prompted = 0
        self._closed = False
        self._lock = threading.Lock()  # over all of these

    async def generate(
        self,
        policy: str,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        seed: int,
        version: int | None = None,
        deadline_s: float | None = None,
    ) -> Generation:
        """See `Engine.generate`. Raises EngineError for a text without a question; an empty text gets a filler.

        Only `max_tokens` and the first stop token of `sampling` are used.
        """
        known = self._require_known(policy)
        prompt, sampling = check_request(ids, sampling, vocabulary=known.vocabulary, context=known.context)
        question = self._read_question(known.codec.decode(prompt))
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end(error: EngineError | None = None) -> None:
            if not ended.done():
                ended.set_exception(error) if error else ended.set_result(None)

        planned = self._settings.draw_tokens(question.level, seed) if question else 1
        fail = partial(loop.call_soon_threadsafe, end)
        request = _Request(policy, version, min(planned, sampling.max_tokens), self._settings.seconds_per_token, fail)
        self._admit(request, len(prompt))
        takes_s = request.tokens * request.seconds_per_token
        timer = loop.call_later(takes_s if deadline_s is None else min(takes_s, deadline_s), end)
        try:
            await ended
        finally:
            timer.cancel()
            made = self._end_request(request)
        answer = self._build_answer(known, question, sampling, seed, request.version)
        finish: FinishReason = "stop" if made == planned else "length" if made == request.tokens else "cancelled"
        return Generation(
            ids=np.array(answer[:made], np.int32),
            logprobs=np.full(made, -math.log(known.vocabulary), np.float32),
            version_runs=tuple(request.runs),
            finish_reason=finish,
        )

    def load(self, policy: str, version: int, weights: Mapping[str, Any]) -> None:  # noqa: ARG002 - as the contract has it
        """See `Engine.load`. The weights are not looked at."""
        self._require_known(policy)
        with self._lock:
            self._check_open()
            self._served[policy] = version
            for request in self._open:
                if request.policy == policy and request.held is None:
                    request.note_version_tokens()
                    request.version = version

    def hold(self, policy: str, version: int, weights: Mapping[str, Any] | None = None) -> None:
        """See `Engine.hold`."""
        self._require_known(policy)
        with self._lock:
            self._check_open()
            if weights is None and self._served.get(policy) != version:
                self._check_held(policy, version)
            self._holds[policy, version] = self._holds.get((policy, version), 0) + 1

    def release(self, policy: str, version: int) -> None:
        """See `Engine.release`."""
        with self._lock:
            self._check_held(policy, version)
            self._holds[policy, version] -= 1

    def versions(self) -> dict[str, int]:
        """See `Engine.versions`."""
        with self._lock:
            return dict(self._served)

    def stats(self) -> EngineStats:
        """See `Engine.stats`. It computes nothing, so `busy_s` is 0."""
        with self._lock:
            made = self._generated + sum(request.count_made() for request in self._open)
            return EngineStats(made, self._prompted, 0, len(self._open), 0, 0.0)

    def close(self) -> None:
        """See `Engine.close`. Safe to call twice."""
        with self._lock:
            self._closed = True
            for request in self._open:
                request.fail(EngineError("the engine is closed"))

    def _require_known(self, policy: str) -> ScriptedPolicy:
        if policy not in self._policies:
            raise EngineError(f"no policy {policy!r} in this engine; its policies are {sorted(self._policies)}")
        return self._policies[policy]

    def _read_question(self, text: str) -> Question | None:
        asked = read_question(text)
        if asked is None and text.strip():
            raise EngineError(
                f'the engine "scripted" cannot read {text[:100]!r}: it answers only questions of the environment '
                '"scripted"; set env = "scripted" in the workflow, or use another rollout.engine'
            )
        if asked is not None and asked.level >= len(self._settings.tokens):
            raise EngineError(
                f"the question {str(asked)!r} is of level {asked.level}, but the engine scripted has only the levels 0 "
                f"to {len(self._settings.tokens) - 1}: give difficulties and tokens of rollout.engine one value for "
                "each level"
            )
        return asked

    def _build_answer(
        self, known: ScriptedPolicy, question: Question | None, sampling: Sampling, seed: int, version: int
    ) -> list[int]:
        """Return all tokens of an answer whose last token `version` generates."""
        [filler] = known.codec.encode_plain(FILLER)
        if question is None:
            return [filler]
        is_right = random.Random(seed).random() < self._settings.chance(question.level, version)  # noqa: S311
        [digit] = known.codec.encode_plain(str(question.answer if is_right else (question.answer + 1) % 10))
        end = [digit, *sampling.stop_ids[:1]]
        return [filler] * (self._settings.draw_tokens(question.level, seed) - len(end)) + end

    def _admit(self, request: _Request, prompt_tokens: int) -> None:
        with self._lock:
            self._check_open()
            if request.held is not None:
                self._check_held(request.policy, request.held)
                request.version = request.held
            elif request.policy in self._served:
                request.version = self._served[request.policy]
            else:
                raise EngineError(f"policy {request.policy} has no weights yet; load a version first")
            self._prompted += prompt_tokens
            self._open.add(request)

    def _end_request(self, request: _Request) -> int:
        """Return how many tokens were made."""
        with self._lock:
            self._open.discard(request)
            made = request.note_version_tokens()
            self._generated += made
            return made

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")

    def _check_held(self, policy: str, version: int) -> None:
        if not self._holds.get((policy, version)):
            held = sorted(key[1] for key, count in self._holds.items() if key[0] == policy and count)
            raise VersionGone(
                f"policy {policy} version {version} is not held by this engine (held: {held}, served: "
                f"{self._served.get(policy)}): call `hold` before use"
            )
