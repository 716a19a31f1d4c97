"""Making up for the policy that sampled: weights and rejections from w = pi_prox / pi_b, without gradient.

pi_prox is TrainedTokens.proximal, else pi_theta as it is now. A loss under a correction that weighs takes its ratio to
pi_prox, as w already holds the way from pi_b to it; under one that only rejects, to pi_b as ever.

w_t is of a token; a sequence's product and geometric mean are over its kept tokens. Token weights are biased, sequence
weights unbiased and noisy. Of several corrections, those that only reject come first, each over all tokens; the weight
of a sequence is over what they leave.
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
    """What to multiply the loss terms by, and what to take out."""

    weights: Tensor | None
    """float[N]; None: one each, and the loss keeps its ratio to pi_b."""
    rejected: Tensor | None
    """bool[N]; None: none."""


def tis(tokens: TrainedTokens, *, level: str = "token", cap: float = 2.0) -> Correction:
    """Weigh by truncated importance sampling: min(w, cap).

    Args:
        tokens: N tokens.
        level: "token", or "sequence": the product over its kept tokens, the same for each of them.
        cap: 1.5 to 5 for tokens, 2 to 10 for sequences.
    """
    return Correction(_weights(tokens, level).clamp(max=_check_positive("tis", "cap", cap)), None)


def mis(tokens: TrainedTokens, *, level: str = "token", cap: float = 2.0) -> Correction:
    """Weigh by masked importance sampling: w, and what is above the cap is rejected. Parameters as of `tis`."""
    weights = _weights(tokens, level)
    return Correction(weights, ~is_within(weights, 0, _check_positive("mis", "cap", cap)))


def icepop(tokens: TrainedTokens, *, low: float = 0.2, high: float = 5.0) -> Correction:
    """Weigh as IcePop (INTELLECT-3, arXiv 2512.16144): the token's w, and what is outside low..high is rejected."""
    weights = _weights(tokens, "token")
    return Correction(weights, ~is_within(weights, *_check_range("icepop", low, high)))


def rejection(
    tokens: TrainedTokens, *, level: str = "token", high: float | None = None, low: float | None = None
) -> Correction:
    """Reject what is outside low..high, and weigh nothing.

    Args:
        tokens: N tokens.
        level: Of what is compared: "token" w, "sequence" product of w, "geometric" mean of w over a sequence.
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
    """Reject every sequence in which the w of any token, unclamped, is below `low`: 1e-4 to 1e-6."""
    return Correction(
        None, broadcast_sequence_any(_raw_log_weights(tokens) < math.log(_check_positive("veto", "low", low)), tokens)
    )


def is_within(values: Tensor, low: float, high: float) -> Tensor:
    """Return bool[N]: low <= value <= high, where a value that only rounding took out of the range is in it."""
    slack = 8 * torch.finfo(values.dtype).eps
    return (values >= low - slack * max(1.0, abs(low))) & (values <= high + slack * max(1.0, abs(high)))


def effective_sample_size(weights: Tensor) -> Tensor:
    """(sum w)^2 / sum w^2 of float[N]: as many samples of weight one are worth as much; 0 of none."""
    squares = weights.square().sum()
    return torch.where(squares > 0, weights.sum().square() / squares, torch.zeros_like(squares))


@torch.no_grad()
def weight_metrics(log_weights: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Return metrics of weights: float[N] the log w before any bound, float[N] the weights in use.

    weight_mean and weight_square_mean (`metrics.means` makes chi2 and the effective sample size of them), weight_max,
    and KL(pi_b || pi_prox) as weight_kl_k1 and weight_kl_k3.
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
    """Log pi_prox - log pi_b, held to +-20: float[N], no gradient."""
    near = tokens.logprobs if tokens.proximal is None else tokens.proximal
    return log_ratio(near.detach(), tokens.behaviour_logprobs)


def perplexity_ratio(tokens: TrainedTokens) -> Tensor:
    """Of each token's sequence, (product of w)^(-1 / L) = perplexity under pi_prox / under pi_b: float[N]."""
    return (-broadcast_sequence_mean(log_weights_of(tokens), tokens)).exp()


def _raw_log_weights(tokens: TrainedTokens) -> Tensor:
    near = tokens.logprobs if tokens.proximal is None else tokens.proximal
    return near.detach() - tokens.behaviour_logprobs


def _weights(tokens: TrainedTokens, level: str) -> Tensor:
    if level == "token":
        return log_weights_of(tokens).exp()
    if level != "sequence":
        raise UsageError(f"correction: level must be token or sequence; got {level!r}")
    return broadcast_sequence_sum(_raw_log_weights(tokens), tokens).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def _check_range(name: str, low: float, high: float) -> tuple[float, float]:
    if _check_positive(name, "low", low) > _check_positive(name, "high", high):
        raise UsageError(f"{name}: low must not be above high, got {low} and {high}")
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
