"""Draws one token per row, all rows at once, each from its own random stream.

A row's token depends on its logits, seed and token number only, never on its neighbours in the batch: one uniform per
(seed, token number) from a counter-based generator, then the inverse of the cumulative distribution in vocabulary
order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

U64 = npt.NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(z: U64) -> U64:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def start_stream(seed: int) -> U64:
    """uint64[1]: where the random stream of `seed` (any int) starts; neighbouring seeds are far apart."""
    return _mix(np.array([seed % 2**64], dtype=np.uint64) + _GOLDEN)


def draw_uniforms(streams: U64, numbers: U64) -> npt.NDArray[np.float64]:
    """float64[n] in (0, 1): draw `numbers[i]` of stream i. SplitMix64 (Steele, Lea, Flood 2014), its upper 40 bits."""
    bits = _mix(streams + (numbers + np.uint64(1)) * _GOLDEN) >> np.uint64(24)
    # The half keeps 0 out; 41 bits are exact in float64, so the product with a sum of probabilities stays below it.
    return (bits.astype(np.float64) + 0.5) * 2.0**-40


@dataclass(frozen=True, slots=True)
class Filters:
    """Which tokens may be drawn, per row; all [n, 1]."""

    top_p: torch.Tensor
    top_k: torch.Tensor  # 0 is off
    min_p: torch.Tensor


@dataclass(frozen=True, slots=True)
class Draw:
    """How the rows of one batch are drawn; parts that no row uses are None and cost nothing."""

    temperature: torch.Tensor | None  # float32[n, 1], 1 for greedy rows
    greedy: torch.Tensor | None  # bool[n]
    filters: Filters | None


def sample(logits: torch.Tensor, draw: Draw, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw from float32[n, V] logits with float64[n] uniforms: (int64[n] tokens, float32[n] log-probabilities).

    Log-probabilities are log_softmax(logits / temperature) over the whole vocabulary, whatever the filters.
    Rows with logits that are not finite give a log-probability that is not finite.
    """
    if draw.temperature is not None:
        logits = logits / draw.temperature
    logprobs = logits.log_softmax(-1)
    weights = logprobs.exp()
    if draw.filters is not None:
        weights = weights * _mask_allowed(weights, draw.filters)
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    threshold = uniform[:, None] * cumulative[:, -1:]
    token = torch.searchsorted(cumulative, threshold, right=True).clamp_(max=logits.shape[-1] - 1)
    if draw.greedy is not None:
        token = torch.where(draw.greedy[:, None], logits.argmax(-1, keepdim=True), token)
    return token[:, 0], logprobs.gather(-1, token)[:, 0]


def _mask_allowed(probabilities: torch.Tensor, filters: Filters) -> torch.Tensor:
    """bool[n, V]: inside top-p, top-k and min-p; the most likely token always is."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1, dtype=torch.float64) - ordered
    rank = torch.arange(ordered.shape[-1], device=ordered.device)
    # top_p 1 is off: the sum of the rest may round to 1 or above.
    inside = (before < filters.top_p) | (filters.top_p >= 1)
    inside &= (rank < filters.top_k) | (filters.top_k == 0)
    inside &= ordered >= filters.min_p * ordered[:, :1]
    inside[:, 0] = True
    return torch.zeros_like(inside).scatter_(-1, order, inside)
