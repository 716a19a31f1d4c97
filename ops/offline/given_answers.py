"""An engine whose policies give the user's answers, for `headrace try --answer`: it tests a scorer on any text.

The log-probabilities are those that the policy itself gives to the answer's tokens. So the step that follows is the
same as if the policy had generated them. A policy without answers uses the engine that the recipe names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from headrace.infra.errors import UsageError
from headrace.producers.engines.contract import (
    LOGPROB_CONVENTION,
    Engine,
    EngineStats,
    Generation,
    KvOnSwap,
    LogprobConvention,
    Sampling,
    TextCodec,
    check_request,
)
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.logprobs import compute_answer_logprobs


class GivenAnswers:
    """See `headrace.producers.engines.contract.Engine`; the inner engine plays policies without answers.

    Args:
        engine: Plays policies without answers.
        answers: Policy to the texts of its calls, in turn and repeated.
        tokenizers: Policy to tokenizer.
        learners: Policy to learner, which holds version 0.

    Raises UsageError for a text that a policy's tokenizer cannot encode.
    """

    logprob_convention: LogprobConvention = LOGPROB_CONVENTION

    def __init__(
        self,
        engine: Engine,
        answers: Mapping[str, Sequence[str]],
        tokenizers: Mapping[str, TextCodec],
        learners: Mapping[str, Learner],
    ) -> None:
        self._engine, self._learners = engine, learners
        self._given: dict[str, Iterator[list[int]]] = {
            policy: cycle([_encode(text, policy, tokenizers[policy]) for text in texts])
            for policy, texts in answers.items()
        }

    @property
    def kv_on_swap(self) -> KvOnSwap:
        """See `Engine.kv_on_swap`."""
        return self._engine.kv_on_swap

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
        """See `Engine.generate`: the next answer of the policy and a stop token, cut at `max_tokens`."""
        if policy not in self._given:
            return await self._engine.generate(policy, ids, sampling, seed=seed, version=version, deadline_s=deadline_s)
        limits = self._learners[policy].limits
        context = limits.positions or len(ids) + sampling.max_tokens
        prompt, sampling = check_request(ids, sampling, vocabulary=limits.vocabulary, context=context)
        whole = [*next(self._given[policy]), *sampling.stop_ids[:1]]
        said = np.array(whole[: sampling.max_tokens], np.int32)
        model = self._learners[policy].model
        logprobs = compute_answer_logprobs(model, prompt.tolist(), said, sampling.temperature or 1.0)
        return Generation(said, logprobs, ((0, said.size),), "stop" if len(whole) == said.size else "length")

    def load(self, policy: str, version: int, weights: Mapping[str, Any]) -> None:
        """See `Engine.load`."""
        self._engine.load(policy, version, weights)

    def hold(self, policy: str, version: int, weights: Mapping[str, Any] | None = None) -> None:
        """See `Engine.hold`."""
        self._engine.hold(policy, version, weights)

    def release(self, policy: str, version: int) -> None:
        """See `Engine.release`."""
        self._engine.release(policy, version)

    def versions(self) -> dict[str, int]:
        """See `Engine.versions`."""
        return self._engine.versions()

    def stats(self) -> EngineStats:
        """See `Engine.stats`."""
        return self._engine.stats()

    def close(self) -> None:
        """See `Engine.close`."""
        self._engine.close()


def _encode(text: str, policy: str, tokenizer: TextCodec) -> list[int]:
    try:
        return tokenizer.encode_plain(text)
    except Exception as error:  # the tokenizers library raises bare Exception
        raise UsageError(f"--answer {text!r}: the tokenizer of policy {policy} cannot encode it: {error}") from error


def parse_answers(policies: Sequence[str], words: Sequence[str]) -> dict[str, list[str]]:
    """Return the texts of `TEXT` or `POLICY=TEXT` words by policy. Raises UsageError if the policy is not clear."""
    found: dict[str, list[str]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (equals and name in policies):
            if len(policies) > 1:
                raise UsageError(f"--answer {word!r}: write POLICY=TEXT; the policies are {', '.join(policies)}")
            name, text = policies[0], word
        found.setdefault(name, []).append(text)
    return found
