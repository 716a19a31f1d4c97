"""What every generation engine promises. Nothing here imports torch.

Tokens in, tokens out: a request is a list of token ids, a `Generation` holds the new ids with the log-probability of
each and the weight version that made it. Versions are counted per policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from headrace.envs.contract import FinishReason, Generation
from headrace.infra.errors import HeadraceError, Unavailable
from headrace.schemas.records import Sampling

__all__ = [
    "KV_ON_SWAP",
    "LOGPROB_CONVENTION",
    "Capabilities",
    "Engine",
    "EngineAway",
    "EngineError",
    "EngineStats",
    "FinishReason",
    "Generation",
    "KvOnSwap",
    "LogprobConvention",
    "Sampling",
    "TextCodec",
    "VersionGone",
    "capabilities_of",
    "check_request",
    "check_sampling",
]

LogprobConvention = Literal["raw", "tempered", "masked"]
"""raw: log_softmax(logits). tempered: log_softmax(logits / temperature), over the whole vocabulary even where top-p,
top-k or min-p cut it; at temperature 0 (greedy) the raw value. masked: over the tokens that those filters leave."""

LOGPROB_CONVENTION: LogprobConvention = "tempered"

KvOnSwap = Literal["recompute", "keep"]
"""What an engine does with the KV cache of running sequences when weights change between two of their tokens."""

KV_ON_SWAP: KvOnSwap = "recompute"
"""Recompute: the log-probability of each token is that of a plain forward, under the weights of the token's own
version, over the whole prefix, so anybody with the weights can check it. A kept cache mixes versions for good."""


class EngineError(HeadraceError):
    """A request, a weight set or the engine itself cannot do what was asked."""


class EngineAway(EngineError, Unavailable):
    """A server of the engine cannot be reached, or starts: what was asked can be done later."""


class VersionGone(EngineError):
    """The weight version asked for is not held (any more)."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the start, and what is in the engine now."""

    generated_tokens: int
    prompt_tokens: int
    recomputed_tokens: int
    """Prefix tokens computed again after weight swaps."""
    running: int
    waiting: int
    busy_s: float
    """Seconds spent computing, of all engine threads."""
    swap_s: float = 0.0
    """Seconds for which it was stopped by loads of new weights."""
    reused_tokens: int = 0
    """Prompt tokens that a prefix cache had."""
    progress: int = 0
    """Grows as tokens are made, where `generated_tokens` counts those of a request when it ends."""
    trouble: str = ""
    """What it waits for, such as a server that starts again; empty while it can generate."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do beyond generating. An engine without this attribute has the defaults."""

    held_versions: int = 2
    """Versions of a policy that it can hold at once beside the served one; 0: evaluation tasks go to other workers."""
    keeps_sessions: bool = False
    """Whether `generate` takes `session`: requests with the same one share a prefix, and go to one server."""
    is_seeded: bool = True
    """Whether the same request with the same seed gives the same tokens."""


def capabilities_of(engine: Engine) -> Capabilities:
    """Return what an engine says that it can do."""
    found: Capabilities = getattr(engine, "capabilities", Capabilities())
    return found


class Engine(Protocol):
    """Generates with the newest served weights of several policies, or with a weight set held for an evaluation."""

    @property
    def logprob_convention(self) -> LogprobConvention:
        """The convention of every log-probability this engine returns."""
        ...

    @property
    def kv_on_swap(self) -> KvOnSwap:
        """What happens to running sequences when weights are swapped."""
        ...

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
        """Continue `ids`; cancelling the awaiting task frees its slot at once.

        An engine whose `capabilities.keeps_sessions` is set also takes `session: int | None`.

        version None follows the newest served weights in flight; an int runs on exactly that held weight set.
        deadline_s is seconds from now; when they have passed the request ends as "cancelled" with what it has.
        An engine may go on after a text of `sampling.stop`: the actor cuts what follows it.
        Raises VersionGone, and EngineError for a request that cannot run (that request only) or a dead engine (all).
        """
        ...

    def load(self, policy: str, version: int, weights: Mapping[str, Any]) -> None:
        """Serve `weights` (HF parameter names) as `version` from the next token on; returns when it is so."""
        ...

    def hold(self, policy: str, version: int, weights: Mapping[str, Any] | None = None) -> None:
        """Keep `version` beside the served weights until `release`; counted, so hold twice, release twice.

        Without `weights` the version must be the one served now or one already held, else VersionGone.
        """
        ...

    def release(self, policy: str, version: int) -> None:
        """Undo one `hold`; requests that already run on the set finish."""
        ...

    def versions(self) -> dict[str, int]:
        """Return the served version of each policy that has weights."""
        ...

    def stats(self) -> EngineStats:
        """Return a snapshot of the counters."""
        ...

    def close(self) -> None:
        """Stop; every open request gets an EngineError."""
        ...


def check_sampling(sampling: Sampling) -> None:
    """Raise EngineError for a value outside its range, naming both."""
    ranges = {
        "temperature": (sampling.temperature == 0 or 0.01 <= sampling.temperature <= 100, "0 or in [0.01, 100]"),
        "top_p": (0 < sampling.top_p <= 1, "in (0, 1]"),
        "top_k": (sampling.top_k >= 0, "0 (off) or more"),
        "min_p": (0 <= sampling.min_p < 1, "in [0, 1)"),
        "max_tokens": (sampling.max_tokens >= 1, "at least 1"),
    }
    for name, (is_right, allowed) in ranges.items():
        if not is_right:
            raise EngineError(f"sampling.{name} is {getattr(sampling, name)}; it must be {allowed}")


def check_request(
    ids: Sequence[int], sampling: Sampling, *, vocabulary: int, context: int
) -> tuple[npt.NDArray[np.int32], Sampling]:
    """Return `ids` as int32[P] and the sampling, its `max_tokens` cut to what the prompt leaves of the context.

    Raises EngineError for a sampling value outside its range, and for a prompt that is empty, holds ids outside the
    vocabulary, or leaves no room for one token.
    """
    check_sampling(sampling)
    prompt = np.asarray(ids, dtype=np.int64)
    if prompt.ndim != 1 or prompt.size == 0:
        raise EngineError(f"a prompt must be one non-empty list of token ids; got shape {prompt.shape}")
    wrong = np.flatnonzero((prompt < 0) | (prompt >= vocabulary))
    if wrong.size:
        at = int(wrong[0])
        raise EngineError(
            f"token id {prompt[at]} at position {at} is outside the model's vocabulary of {vocabulary}; "
            "encode the prompt with the tokenizer that belongs to the model"
        )
    room = context - int(prompt.size)
    if room < 1:
        raise EngineError(
            f"the prompt has {prompt.size} tokens, but the model's context of {context} leaves no room for an answer; "
            "shorten the prompt, or use a model with a longer context"
        )
    return prompt.astype(np.int32), replace(sampling, max_tokens=min(sampling.max_tokens, room))


class TextCodec(Protocol):
    """What an episode needs of a tokenizer."""

    hash: str
    stop_ids: tuple[int, ...]
    context: int

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        template_arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """Return messages as text, by the chat template."""

    def encode_rendered(self, text: str) -> list[int]:
        """Return the ids of a rendered conversation that begins a sequence."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a user's turn."""

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of a text, without any template."""

    def decode(self, ids: Sequence[int] | npt.NDArray[np.int32], *, special_tokens: bool = False) -> str:
        """Return the text of ids, without special tokens or with them."""
