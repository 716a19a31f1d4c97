"""An engine without a model, for the mechanics of a run where a model is too slow: streaks, staleness, lengths, order.

It answers the questions of `envs/scripted.py`. An answer to one of level l is `tokens[l]` tokens long and takes
`seconds_per_token` for each, however many are asked at once; it is right with probability
sigma(rate * version - difficulties[l]), of the version that makes its last token. The draw is a function of the
request's seed alone, so the same request has the same answer at the same version, and one that is right stays right as
versions rise.

Weights are taken and counted, not looked at. The log-probability of every token is that of a uniform choice from the
vocabulary, which no model made: a trainer's ratios mean nothing then. Its weights move by real gradients all the same.
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
"""Tokens: the answer, and the one that stops."""
EARLY_S = 1e-3
"""A timer may fire so early, and its answer is whole all the same."""


@dataclass(frozen=True, slots=True)
class ScriptedSettings:
    """What it plays. Raises EngineError for a value outside its range."""

    rate: float = 0.05
    """How much each version raises the logit of a right answer."""
    difficulties: Sequence[float] = (0.0, 2.0)
    """Difficulty by level: the logit that version 0 lacks for every second answer to be right."""
    tokens: Sequence[int] = (4, 32)
    """Tokens of an answer by level, the stop token included."""
    seconds_per_token: float = 0.0

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) != len(self.difficulties):
            raise EngineError(
                "difficulties and tokens must have the same number of values, one for each level; got "
                f"{list(self.difficulties)} and {list(self.tokens)}"
            )
        if min(self.tokens) < SHORTEST or self.seconds_per_token < 0:
            raise EngineError(
                f"tokens must be at least {SHORTEST} and seconds_per_token at least 0; got {list(self.tokens)} and "
                f"{self.seconds_per_token}"
            )

    def chance(self, level: int, version: int) -> float:
        """Return the probability of a right answer."""
        return 0.5 + 0.5 * math.tanh((self.rate * version - self.difficulties[level]) / 2)


@dataclass(frozen=True, slots=True)
class ScriptedPolicy:
    """What it knows of a policy."""

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
    """The exact version asked for."""
    tokens: int
    """Token ids of the whole answer."""
    seconds_per_token: float
    fail: Callable[[EngineError], object]
    """May be called by any thread."""
    version: int = -1
    """That of the next token."""
    began: float = field(default_factory=time.monotonic)
    runs: list[tuple[int, int]] = field(default_factory=list)
    """(version, tokens) of the versions before it."""

    def count_made(self) -> int:
        """Return how many tokens there are by now."""
        if not self.seconds_per_token:
            return self.tokens
        return min(self.tokens, int((time.monotonic() - self.began + EARLY_S) / self.seconds_per_token))

    def end_run(self) -> int:
        """Note which tokens the version made so far; return how many there are of all versions."""
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
        """See `Engine.generate`. EngineError for a text that asks nothing; an empty one is answered by a filler.

        Of `sampling`, only `max_tokens` and the first stop token count.
        """
        known = self._require_known(policy)
        prompt, sampling = check_request(ids, sampling, vocabulary=known.vocabulary, context=known.context)
        question = self._read_question(known.codec.decode(prompt))
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def end(error: EngineError | None = None) -> None:
            if not ended.done():
                ended.set_exception(error) if error else ended.set_result(None)

        planned = self._settings.tokens[question.level] if question else 1
        fail = partial(loop.call_soon_threadsafe, end)
        request = _Request(policy, version, min(planned, sampling.max_tokens), self._settings.seconds_per_token, fail)
        self._admit(request, len(prompt))
        takes_s = request.tokens * request.seconds_per_token
        timer = loop.call_later(takes_s if deadline_s is None else min(takes_s, deadline_s), end)
        try:
            await ended
        finally:
            timer.cancel()
            made = self._leave(request)
        answer = self._answer(known, question, sampling, seed, request.version)
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
                    request.end_run()
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
            raise EngineError(f"no policy {policy!r} in this engine; it has {sorted(self._policies)}")
        return self._policies[policy]

    def _read_question(self, text: str) -> Question | None:
        asked = read_question(text)
        if asked is None and text.strip():
            raise EngineError(
                f"the scripted engine cannot read {text[:100]!r}: it answers only questions of environment `scripted`; "
                'use env = "scripted", or another engine'
            )
        if asked is not None and asked.level >= len(self._settings.tokens):
            raise EngineError(
                f"{asked} is of level {asked.level}, but the scripted engine has only the levels 0 to "
                f"{len(self._settings.tokens) - 1}: give its `difficulties` and `tokens` a value for each level"
            )
        return asked

    def _answer(
        self, known: ScriptedPolicy, question: Question | None, sampling: Sampling, seed: int, version: int
    ) -> list[int]:
        """Return all tokens of an answer whose last one is made by `version`."""
        [filler] = known.codec.encode_plain(FILLER)
        if question is None:
            return [filler]
        is_right = random.Random(seed).random() < self._settings.chance(question.level, version)  # noqa: S311
        [digit] = known.codec.encode_plain(str(question.answer if is_right else (question.answer + 1) % 10))
        end = [digit, *sampling.stop_ids[:1]]
        return [filler] * (self._settings.tokens[question.level] - len(end)) + end

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

    def _leave(self, request: _Request) -> int:
        """Return how many tokens were made."""
        with self._lock:
            self._open.discard(request)
            made = request.end_run()
            self._generated += made
            return made

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")

    def _check_held(self, policy: str, version: int) -> None:
        if not self._holds.get((policy, version)):
            held = sorted(key[1] for key, count in self._holds.items() if key[0] == policy and count)
            raise VersionGone(
                f"policy {policy} version {version} is not held (held: {held}, served: {self._served.get(policy)}); "
                "hold it before use"
            )
