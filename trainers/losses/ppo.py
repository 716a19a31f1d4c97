"""Losses that clip the ratio of two policies."""

from __future__ import annotations

import torch
from torch import Tensor

from infra.errors import UsageError
from trainers.losses.metrics import clip_metrics, ratio_metrics
from trainers.losses.tokens import TokenLoss, TrainedTokens, log_ratio


def ppo(
    tokens: TrainedTokens, *, clip_low: float = 0.2, clip_high: float = 0.28, dual_clip: float | None = None
) -> TokenLoss:
    """PPO's clipped surrogate (arXiv 1707.06347): max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)).

    rho = pi_theta / pi_b, the *behaviour* policy (bypass): one forward pass, and a mismatch between engine and trainer
    counts against the trust region.

    Args:
        tokens: N tokens.
        clip_low: Below 1; at most 1.
        clip_high: Above 1. The default pair is DAPO's clip-higher (arXiv 2503.14476); the PPO paper's is 0.2 / 0.2.
        dual_clip: c > 1: where A < 0 the loss is at most -c A (arXiv 1912.09729; its c is 3). None: no such bound.
    """
    check_clip(clip_low, clip_high)
    delta = log_ratio(tokens.logprobs, tokens.behaviour)
    ratio = delta.exp()
    terms = surrogate(ratio, tokens.advantages, clip_low, clip_high)
    metrics = ratio_metrics(delta) | clip_metrics(ratio, tokens.advantages, clip_low, clip_high)
    if dual_clip is not None:
        if dual_clip <= 1:
            raise UsageError(f"dual_clip must be above 1, got {dual_clip}")
        bound = -dual_clip * tokens.advantages
        bounded = (tokens.advantages < 0) & (terms > bound)
        terms = torch.where(bounded, bound, terms)
        metrics["dual_clip_fraction"] = bounded.sum().double()
    return TokenLoss(terms, metrics)


def surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Take max(-A ratio, -A clip(ratio, 1 - low, 1 + high)): float[N] of two float[N]."""
    free = -advantages * ratio
    bound = -advantages * ratio.clamp(1 - low, 1 + high)
    return torch.where(bound > free, bound, free)


def check_clip(low: float, high: float) -> None:
    """Raise UsageError unless [1 - low, 1 + high] is a range around 1."""
    if not (0 <= low <= 1 and high >= 0):
        raise UsageError(f"clip_low must be in 0..1 and clip_high at least 0, got {low} and {high}")
