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
"""raw: log_softmax(logits). tempered: log_softmax(logits / temperature) over the whole vocabulary, also with top-p,
top-k or min-p; at temperature 0 (greedy) the raw value. masked: over the tokens that these filters leave."""

LOGPROB_CONVENTION: LogprobConvention = "tempered"

KvOnSwap = Literal["recompute", "keep"]
"""What an engine does with the KV cache of running sequences when weights change between two of their tokens."""

KV_ON_SWAP: KvOnSwap = "recompute"
"""Recompute: the log-probability of each token equals that of a plain forward pass over the whole prefix with the
weights of the token's version, so it can be checked with these weights. A kept cache mixes versions."""


class EngineError(HeadraceError):
    """A request, a weight set or the engine itself cannot do what was asked."""


class EngineAway(EngineError, Unavailable):
    """A server of the engine cannot be reached or is still starting: the same call may succeed later."""


class VersionGone(EngineError):
    """The engine does not hold the requested weight version, or no longer holds it."""


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
    """Seconds for which generation stopped to load new weights."""
    reused_tokens: int = 0
    """Prompt tokens found in a prefix cache."""
    progress: int = 0
    """Grows with every generated token, while `generated_tokens` counts the tokens of a request only when it ends."""
    trouble: str = ""
    """What the engine waits for, such as the restart of a server; empty while it can generate."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do besides generation. The defaults hold for an engine without `capabilities`."""

    held_versions: int = 2
    """Versions of a policy that it can hold beside the served version; 0: other workers get evaluation tasks."""
    keeps_sessions: bool = False
    """Whether `generate` takes `session`: requests with the same session share a prefix and go to the same server."""
    is_seeded: bool = True
    """Whether the same request with the same seed gives the same tokens."""
    dtype: str = ""
    """Type of the numbers that it computes with, for people; empty if it is not known."""


def capabilities_of(engine: Engine) -> Capabilities:
    """Return the engine's own capabilities, or the defaults."""
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

        version None: always the newest served weights, also within a request. An int: exactly that held version.
        deadline_s is seconds from now; then the request ends as "cancelled" with its tokens so far.
        An engine may generate past a text of `sampling.stop`: the actor cuts off the tokens after it.
        Raises VersionGone, and EngineError for a request that cannot run or when the engine is dead.
        """
        ...

    def load(self, policy: str, version: int, weights: Mapping[str, Any]) -> None:
        """Serve `weights` (HF parameter names) as `version` from the next token on; return when they are in use."""
        ...

    def hold(self, policy: str, version: int, weights: Mapping[str, Any] | None = None) -> None:
        """Keep `version` beside the served weights until `release`. Holds are counted: each one needs its own release.

        Without `weights`, raises VersionGone unless the version is the served one or already held.
        """
        ...

    def release(self, policy: str, version: int) -> None:
        """Undo one `hold`; requests that already run on this version finish."""
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
    """Raise EngineError for a value outside its range; the message names the value and the range."""
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
            f"token id {prompt[at]} at position {at} is not among the {vocabulary} ids of the model's vocabulary; "
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
