"""Losses with one ratio per sequence; their papers use the mean over sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.infra.errors import UsageError
from headrace.trainers.losses.metrics import clip_metrics, ratio_metrics
from headrace.trainers.losses.ppo import check_clip, surrogate
from headrace.trainers.losses.tokens import TokenLoss, TrainedTokens, broadcast_sequence_mean, log_ratio


def gspo(
    tokens: TrainedTokens, *, clip_low: float = 3e-4, clip_high: float = 4e-4, form: str = "sequence"
) -> TokenLoss:
    """GSPO (arXiv 2507.18071): PPO's surrogate of s = exp(mean of log pi_theta - log pi_b over a sequence's tokens).

    The term of each token is its sequence's loss. So the sequence mean gives every sequence the same weight, as in the
    paper; with the token mean, longer sequences get more weight.

    Args:
        tokens: N tokens.
        clip_low: s is clipped to [1 - clip_low, 1 + clip_high].
        clip_high: See clip_low.
        form: "sequence": s with the mean of the sequence's advantages. "token" (GSPO-token): s without gradient, times
            pi_theta / pi_theta without gradient below, with each token's own advantage.
    """
    check_clip(clip_low, clip_high)
    delta = log_ratio(tokens.logprobs, tokens.behaviour_logprobs)
    log_mean = broadcast_sequence_mean(delta, tokens)
    if form == "sequence":
        ratio = log_mean.exp()
        advantages = broadcast_sequence_mean(tokens.advantages, tokens)
    elif form == "token":
        ratio = (log_mean.detach() + delta - delta.detach()).exp()
        advantages = tokens.advantages
    else:
        raise UsageError(f"gspo: form must be sequence or token; got {form!r}")
    metrics = ratio_metrics(delta) | clip_metrics(ratio, advantages, clip_low, clip_high)
    return TokenLoss(surrogate(ratio, advantages, clip_low, clip_high), metrics)


def gmpo(tokens: TrainedTokens, *, clip_low: float = 0.4, clip_high: float = 0.4) -> TokenLoss:
    """GMPO (arXiv 2507.20673): -A exp(mean of clipped delta over a sequence's tokens), delta = log pi_theta - log pi_b.

    Each token's delta is clipped in log space, on the side that PPO would:
    sign(A) min(sign(A) delta, sign(A) clip(delta, -clip_low, clip_high)). A is the mean of the sequence's advantages.
    """
    if clip_low < 0 or clip_high < 0:
        raise UsageError(f"gmpo: clip_low and clip_high must be at least 0, got {clip_low} and {clip_high}")
    delta = log_ratio(tokens.logprobs, tokens.behaviour_logprobs)
    clipped = _clip_far_side(delta, tokens.advantages, clip_low, clip_high)
    terms = -broadcast_sequence_mean(tokens.advantages, tokens) * broadcast_sequence_mean(clipped, tokens).exp()
    above = ((tokens.advantages > 0) & (delta > clip_high)).sum().double()
    below = ((tokens.advantages < 0) & (delta < -clip_low)).sum().double()
    shares = {"clip_fraction_low": below, "clip_fraction_high": above, "clip_fraction": below + above}
    return TokenLoss(terms, ratio_metrics(delta) | shares)


def _clip_far_side(delta: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    held = torch.where(advantages > 0, delta.clamp(max=high), delta.clamp(min=-low))
    return torch.where(advantages == 0, torch.zeros_like(delta), held)
