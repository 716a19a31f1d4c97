"""Losses that limit the ratio by a gate or a weight instead of PPO's clip."""

from __future__ import annotations

import math

import torch

from headrace.infra.errors import UsageError
from headrace.trainers.losses.metrics import ratio_metrics
from headrace.trainers.losses.tokens import TokenLoss, TrainedTokens, log_ratio


def cispo(tokens: TrainedTokens, *, clip_low: float | None = None, clip_high: float = 4.0) -> TokenLoss:
    """CISPO (MiniMax-M1, arXiv 2506.13585): -sg(clip(rho, 1 - clip_low, 1 + clip_high)) A log pi_theta.

    The weight is clipped, not the gradient, so every token keeps a gradient; rho = pi_theta / pi_b.

    Args:
        tokens: N tokens.
        clip_low: None: no lower bound, as in the paper.
        clip_high: The weight is at most 1 + clip_high: 5 by default, as in ScaleRL (arXiv 2510.13786).
    """
    if clip_high < 0 or (clip_low is not None and not 0 <= clip_low <= 1):
        raise UsageError(
            f"cispo: clip_high must be at least 0, and clip_low from 0 to 1; got {clip_high} and {clip_low}"
        )
    delta = log_ratio(tokens.logprobs, tokens.behaviour_logprobs).detach()
    ratio = delta.exp()
    weights = ratio.clamp(None if clip_low is None else 1 - clip_low, 1 + clip_high)
    metrics = ratio_metrics(delta) | {
        "clip_fraction_low": (weights > ratio).sum().double(),
        "clip_fraction_high": (weights < ratio).sum().double(),
        "clip_fraction": (weights != ratio).sum().double(),
    }
    return TokenLoss(-weights * tokens.advantages * tokens.logprobs, metrics)


def sapo(tokens: TrainedTokens, *, tau_positive: float = 1.0, tau_negative: float = 1.05) -> TokenLoss:
    """SAPO (arXiv 2511.20347): -A (4 / tau) sigmoid(tau (rho - 1)), rho = pi_theta / pi_b.

    4 / tau makes the slope 1 at rho = 1. tau is tau_positive where A > 0, else tau_negative: a bad token's gradient
    fades faster.
    """
    if not (0 < tau_positive < math.inf and 0 < tau_negative < math.inf):
        raise UsageError(
            f"sapo: tau_positive and tau_negative must be above 0 and finite, got {tau_positive} and {tau_negative}"
        )
    delta = log_ratio(tokens.logprobs, tokens.behaviour_logprobs)
    positive = tokens.advantages > 0
    distance = delta.exp() - 1
    gates = torch.where(
        positive,
        torch.sigmoid(tau_positive * distance) * (4 / tau_positive),
        torch.sigmoid(tau_negative * distance) * (4 / tau_negative),
    )
    return TokenLoss(-gates * tokens.advantages, ratio_metrics(delta))


def dppo(
    tokens: TrainedTokens,
    *,
    variant: str = "dppo",
    threshold: float | None = None,
    adv_tau: float = 1.0,
    kl_tau: float = 1e-3,
) -> TokenLoss:
    """DPPO with KL (arXiv 2602.04879, 2602.02276): -mask adv_tau A rho + kl_tau (log rho)^2, rho = pi_theta / pi_b.

    p_theta and p_b are the token's probabilities under the two policies. The second term is on all tokens, masked or
    not. Its log rho is not clamped to +-20, so tokens with the largest ratio are pulled back most.

    Args:
        tokens: N tokens.
        variant: "dppo": mask 0 where A > 0 and p_theta - p_b > threshold, or A <= 0 and p_b - p_theta > threshold.
            "ipo": mask 0 where |p_theta - p_b| > threshold, whatever the sign of A.
        threshold: None: 0.2 for dppo, 0.1 for ipo.
        adv_tau: Weight of the policy term, finite and at least 0.
        kl_tau: Weight of the squared log ratio, finite and at least 0.
    """
    thresholds = {"dppo": 0.2, "ipo": 0.1}
    if variant not in thresholds:
        raise UsageError(f"dppo: variant must be dppo or ipo; got {variant!r}")
    threshold = thresholds[variant] if threshold is None else threshold
    if threshold < 0:
        raise UsageError(f"dppo: threshold must be 0 or more, got {threshold}")
    if not (0 <= adv_tau < math.inf and 0 <= kl_tau < math.inf):
        raise UsageError(f"dppo: adv_tau and kl_tau must be finite and at least 0, got {adv_tau} and {kl_tau}")
    delta = log_ratio(tokens.logprobs, tokens.behaviour_logprobs)
    change = tokens.logprobs.detach().exp() - tokens.behaviour_logprobs.exp()
    if variant == "dppo":
        change = torch.where(tokens.advantages > 0, change, -change)
    masked = change > threshold if variant == "dppo" else change.abs() > threshold
    terms = -adv_tau * tokens.advantages * delta.exp()
    terms = (
        torch.where(masked, torch.zeros_like(terms), terms)
        + kl_tau * (tokens.logprobs - tokens.behaviour_logprobs).square()
    )
    return TokenLoss(terms, ratio_metrics(delta) | {"masked_fraction": masked.sum().double()})


def gpg(tokens: TrainedTokens) -> TokenLoss:
    """Plain policy gradient, -A log pi_theta (REINFORCE; GPG, arXiv 2504.02546): no ratio, so no trust region."""
    delta = log_ratio(tokens.logprobs.detach(), tokens.behaviour_logprobs)
    return TokenLoss(-tokens.advantages * tokens.logprobs, ratio_metrics(delta))
