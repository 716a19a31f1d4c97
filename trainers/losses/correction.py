"""Corrections for the sampling policy: weights and rejections from w = pi_prox / pi_b, without gradient.

pi_prox is TrainedTokens.proximal, or pi_theta if that is missing. With a correction that weights tokens, the loss uses
the ratio to pi_prox, because w covers the ratio from pi_b to pi_prox. With one that only rejects, it uses pi_b.

w_t is a token's weight; a sequence's product and geometric mean are over its kept tokens. Token weights are biased;
sequence weights are unbiased but noisy. Among several corrections, those that only reject come first, each over all
tokens; then sequence weights use the remaining tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.infra.errors import UsageError
from headrace.trainers.losses.metrics import largest
from headrace.trainers.losses.tokens import (
    MAX_LOG_RATIO,
    TrainedTokens,
    broadcast_sequence_any,
    broadcast_sequence_mean,
    broadcast_sequence_sum,
    log_ratio,
)


class Correction(NamedTuple):
    """Weights of the loss terms, and rejected tokens."""

    weights: Tensor | None
    """float[N]; None: all weights are 1, and the loss keeps its ratio to pi_b."""
    rejected: Tensor | None
    """bool[N]; None: no token is rejected."""


def tis(tokens: TrainedTokens, *, level: str = "token", cap: float = 2.0) -> Correction:
    """Weigh by truncated importance sampling: min(w, cap).

    Args:
        tokens: N tokens.
        level: "token", or "sequence": the product over the sequence's kept tokens, the same for each of them.
        cap: Usually 1.5 to 5 for tokens, 2 to 10 for sequences.
    """
    return Correction(_weights("tis", tokens, level).clamp(max=_check_positive("tis", "cap", cap)), None)


def mis(tokens: TrainedTokens, *, level: str = "token", cap: float = 2.0) -> Correction:
    """Weigh by masked importance sampling: w, with rejection above the cap. Parameters as of `tis`."""
    weights = _weights("mis", tokens, level)
    return Correction(weights, ~is_within(weights, 0, _check_positive("mis", "cap", cap)))


def icepop(tokens: TrainedTokens, *, low: float = 0.2, high: float = 5.0) -> Correction:
    """Weigh as IcePop (INTELLECT-3, arXiv 2512.16144): the token's w, with rejection outside low..high."""
    weights = _weights("icepop", tokens, "token")
    return Correction(weights, ~is_within(weights, *_check_range("icepop", low, high)))


def rejection(
    tokens: TrainedTokens, *, level: str = "token", high: float | None = None, low: float | None = None
) -> Correction:
    """Reject tokens or sequences outside low..high, without weights.

    Args:
        tokens: N tokens.
        level: What is compared: "token" w, "sequence" product of w, or "geometric" mean of w over a sequence.
        high: None: 2 for tokens and sequences, 1.001 for the geometric mean.
        low: None: 1 / high.
    """
    if level not in _REJECTION_HIGH:
        raise UsageError(f"rejection: level must be one of {', '.join(_REJECTION_HIGH)}, got {level!r}")
    high = _check_positive("rejection", "high", _REJECTION_HIGH[level] if high is None else high)
    low, high = _check_range("rejection", 1 / high if low is None else low, high)
    log_weights = _raw_log_weights(tokens)
    if level == "sequence":
        log_weights = broadcast_sequence_sum(log_weights, tokens)
    elif level == "geometric":
        log_weights = broadcast_sequence_mean(log_weights, tokens)
    return Correction(None, ~is_within(log_weights, math.log(low), math.log(high)))


def veto(tokens: TrainedTokens, *, low: float = 1e-4) -> Correction:
    """Reject every sequence with a token whose unclamped w is below `low` (usually 1e-4 to 1e-6)."""
    return Correction(
        None, broadcast_sequence_any(_raw_log_weights(tokens) < math.log(_check_positive("veto", "low", low)), tokens)
    )


def is_within(values: Tensor, low: float, high: float) -> Tensor:
    """Return bool[N]: low <= value <= high, with tolerance for rounding."""
    slack = 8 * torch.finfo(values.dtype).eps
    return (values >= low - slack * max(1.0, abs(low))) & (values <= high + slack * max(1.0, abs(high)))


def effective_sample_size(weights: Tensor) -> Tensor:
    """Return (sum w)^2 / sum w^2 of float[N]: the equivalent number of samples of weight 1; 0 for no samples."""
    squares = weights.square().sum()
    return torch.where(squares > 0, weights.sum().square() / squares, torch.zeros_like(squares))


@torch.no_grad()
def weight_metrics(log_weights: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Return metrics of weights, from float[N] log w before any bound and float[N] weights in use.

    They are weight_mean and weight_square_mean (from which `metrics.means` computes chi2 and the effective sample
    size), weight_max, and KL(pi_b || pi_prox) as weight_kl_k1 and weight_kl_k3.
    """
    raw = log_weights.double()
    ratio = raw.exp()
    return {
        "weight_mean": ratio.sum(),
        "weight_square_mean": ratio.square().sum(),
        "weight_max": largest(ratio),
        "weight_used_mean": weights.double().sum(),
        "weight_kl_k1": -raw.sum(),
        "weight_kl_k3": (torch.expm1(raw) - raw).sum(),
    }


def log_weights_of(tokens: TrainedTokens) -> Tensor:
    """Return log pi_prox - log pi_b, clamped to +-20: float[N], no gradient."""
    near = tokens.logprobs if tokens.proximal is None else tokens.proximal
    return log_ratio(near.detach(), tokens.behaviour_logprobs)


def perplexity_ratio(tokens: TrainedTokens) -> Tensor:
    """Return float[N]: (product of w)^(-1 / L) of each token's sequence = perplexity under pi_prox / under pi_b."""
    return (-broadcast_sequence_mean(log_weights_of(tokens), tokens)).exp()


def _raw_log_weights(tokens: TrainedTokens) -> Tensor:
    near = tokens.logprobs if tokens.proximal is None else tokens.proximal
    return near.detach() - tokens.behaviour_logprobs


def _weights(name: str, tokens: TrainedTokens, level: str) -> Tensor:
    if level == "token":
        return log_weights_of(tokens).exp()
    if level != "sequence":
        raise UsageError(f"{name}: level must be token or sequence; got {level!r}")
    return broadcast_sequence_sum(_raw_log_weights(tokens), tokens).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _check_range(name: str, low: float, high: float) -> tuple[float, float]:
    if _check_positive(name, "low", low) > _check_positive(name, "high", high):
        raise UsageError(f"{name}: low must not be above high, got low = {low} and high = {high}")
    return low, high


def _check_positive(name: str, option: str, value: float) -> float:
    if not value > 0:
        raise UsageError(f"{name}: {option} must be above 0, got {value}")
    return value


_REJECTION_HIGH = {"token": 2.0, "sequence": 2.0, "geometric": 1.001}

CORRECTIONS: dict[str, Callable[..., Correction]] = {
    "tis": tis,
    "mis": mis,
    "icepop": icepop,
    "rejection": rejection,
    "veto": veto,
}
