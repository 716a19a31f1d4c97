"""Losses that clip the ratio of two policies."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from headrace.infra.errors import UsageError
from headrace.trainers.losses.metrics import clip_metrics, ratio_metrics
from headrace.trainers.losses.tokens import TokenLoss, TrainedTokens, log_ratio

Bound: TypeAlias = float | Tensor


def ppo(
    tokens: TrainedTokens, *, clip_low: float = 0.2, clip_high: float = 0.28, dual_clip: float | None = None
) -> TokenLoss:
    """PPO's clipped surrogate (arXiv 1707.06347): max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)).

    rho = pi_theta / pi_b, with the *behaviour* policy as old policy: this saves a forward pass, but a mismatch between
    engine and trainer uses up part of the trust region.

    Args:
        tokens: N tokens.
        clip_low: Within 0..1.
        clip_high: At least 0. The default pair is DAPO's clip-higher (arXiv 2503.14476); the PPO paper's is 0.2 / 0.2.
        dual_clip: c > 1: where A < 0 the loss is at most -c A (arXiv 1912.09729; its c is 3). None: no such bound.
    """
    check_clip(clip_low, clip_high)
    delta = log_ratio(tokens.logprobs, tokens.behaviour_logprobs)
    ratio = delta.exp()
    terms = surrogate(ratio, tokens.advantages, clip_low, clip_high)
    metrics = ratio_metrics(delta) | clip_metrics(ratio, tokens.advantages, clip_low, clip_high)
    terms, bounded = apply_dual_clip(terms, tokens.advantages, dual_clip)
    return TokenLoss(terms, metrics | bounded)


def surrogate(ratio: Tensor, advantages: Tensor, low: Bound, high: Bound) -> Tensor:
    """Return max(-A ratio, -A clip(ratio, 1 - low, 1 + high)): float[N] of two float[N]."""
    free = -advantages * ratio
    bound = -advantages * torch.clamp(ratio, 1 - low, 1 + high)  # type: ignore[arg-type]  # both numbers or both tensors
    return torch.where(bound > free, bound, free)


def apply_dual_clip(terms: Tensor, advantages: Tensor, bound: float | None) -> tuple[Tensor, dict[str, Tensor]]:
    """Limit the terms of tokens with A < 0 to at most -bound A (None: no limit); return them with a metric."""
    if bound is None:
        return terms, {}
    if bound <= 1:
        raise UsageError(f"dual_clip must be above 1, got {bound}")
    most = -bound * advantages
    held = (advantages < 0) & (terms > most)
    return torch.where(held, most, terms), {"dual_clip_fraction": held.sum().double()}


def check_clip(low: float, high: float) -> None:
    """Raise UsageError unless [1 - low, 1 + high] is a range around 1."""
    if not (0 <= low <= 1 and high >= 0):
        raise UsageError(f"clip_low must be from 0 to 1, and clip_high at least 0; got {low} and {high}")
