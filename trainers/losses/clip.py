"""PPO's clipped surrogate as the learner calls it: without names, options and totals."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.losses.ppo import surrogate


@dataclass(frozen=True, slots=True)
class Clip:
    """The trust region of the ratio, [1 - low, 1 + high]. The default is DAPO's clip-higher (arXiv 2503.14476)."""

    low: float = 0.2
    high: float = 0.28


def ppo_clip(delta: Tensor, advantages: Tensor, clip: Clip) -> Tensor:
    """Return `surrogate` of the behaviour policy's ratio, exp(delta)."""
    return surrogate(delta.exp(), advantages, clip.low, clip.high)


def token_mean(losses: Tensor, total_tokens: int) -> Tensor:
    """Return a micro-batch's share of the mean over all tokens of its minibatch."""
    return losses.sum() / total_tokens


@torch.no_grad()
def metric_sums(delta: Tensor, advantages: Tensor, clip: Clip) -> dict[str, Tensor]:
    """Sum over tokens, float64 scalars: ratio_mean, clip_fraction and KL(pi_b || pi_theta) as kl_k1 and kl_k3."""
    delta = delta.double()
    ratio = delta.exp()
    clipped = ((advantages > 0) & (ratio > 1 + clip.high)) | ((advantages < 0) & (ratio < 1 - clip.low))
    return {
        "ratio_mean": ratio.sum(),
        "clip_fraction": clipped.sum().double(),
        "kl_k1": -delta.sum(),
        "kl_k3": (ratio - 1 - delta).sum(),
    }
