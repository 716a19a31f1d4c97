"""Policy losses over flat vectors of trained tokens, and the sums that their metrics are made of.

All vectors are float[N]: one entry per token that the policy generated (see `trainers.batch.MicroBatch`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class Clip:
    """The trust region of the ratio, [1 - low, 1 + high]. The default is DAPO's clip-higher (arXiv 2503.14476)."""

    low: float = 0.2
    high: float = 0.28


def log_ratio(logprobs: torch.Tensor, behaviour: torch.Tensor) -> torch.Tensor:
    """Log pi_theta - log pi_b, held to +-20 (no gradient beyond) so that its exponential stays finite."""
    delta = logprobs - behaviour
    bounded = delta.detach().clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return torch.where(delta.abs() > _MAX_LOG_RATIO, bounded, delta)


def ppo_clip(delta: torch.Tensor, advantages: torch.Tensor, clip: Clip) -> torch.Tensor:
    """PPO's clipped surrogate per token (arXiv 1707.06347): max(-A rho, -A clip(rho, 1 - low, 1 + high)).

    rho = exp(delta) is taken over the *behaviour* policy (bypass): one forward pass, and a mismatch between engine
    and trainer counts against the trust region.
    """
    ratio = delta.exp()
    free = -advantages * ratio
    bound = -advantages * ratio.clamp(1 - clip.low, 1 + clip.high)
    return torch.where(bound > free, bound, free)


def token_mean(losses: torch.Tensor, total_tokens: int) -> torch.Tensor:
    """Return a micro-batch's share of the mean over all tokens of its minibatch.

    The shares add up to the same gradient however the minibatch is cut; a mean of micro-batch means would not.
    """
    return losses.sum() / total_tokens


@torch.no_grad()
def metric_sums(delta: torch.Tensor, advantages: torch.Tensor, clip: Clip) -> dict[str, torch.Tensor]:
    """Sum over tokens, float64 scalars: ratio_mean, clip_fraction and KL(pi_b || pi_theta) as kl_k1 and kl_k3.

    k1 = -delta, k3 = e^delta - 1 - delta (Schulman, "Approximating KL divergence"); the samples come from pi_b.
    """
    delta = delta.double()
    ratio = delta.exp()
    clipped = ((advantages > 0) & (ratio > 1 + clip.high)) | ((advantages < 0) & (ratio < 1 - clip.low))
    return {
        "ratio_mean": ratio.sum(),
        "clip_fraction": clipped.sum().double(),
        "kl_k1": -delta.sum(),
        "kl_k3": (ratio - 1 - delta).sum(),
    }
