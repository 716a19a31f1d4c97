"""Metrics of a loss: float64 scalars that add up over micro-batches and ranks without synchronisation.

An entry is a sum over trained tokens, rejected or not, or the largest value if its name ends in `_max`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


@torch.no_grad()
def ratio_metrics(delta: Tensor) -> dict[str, Tensor]:
    """Return metrics of a loss's log ratio, float[N] `delta` to its pi_old: ratio_mean, ratio_max, kl_k1 and kl_k3.

    pi_old is the sampling policy, or pi_prox if weights correct for it. kl_* is KL(pi_old || pi_theta): k1 = -delta, k3
    = e^delta - 1 - delta (Schulman, "Approximating KL divergence").
    """
    delta = delta.double()
    ratio = delta.exp()
    return {
        "ratio_mean": ratio.sum(),
        "ratio_max": largest(ratio),
        "kl_k1": -delta.sum(),
        "kl_k3": (ratio - 1 - delta).sum(),
    }


@torch.no_grad()
def clip_metrics(ratio: Tensor, advantages: Tensor, low: Tensor | float, high: Tensor | float) -> dict[str, Tensor]:
    """Count the tokens that lose their gradient by a clip to [1 - low, 1 + high]: below, above, and in all."""
    ratio = ratio.double()
    below = ((advantages < 0) & (ratio < 1 - low)).sum().double()
    above = ((advantages > 0) & (ratio > 1 + high)).sum().double()
    return {"clip_fraction_low": below, "clip_fraction_high": above, "clip_fraction": below + above}


def largest(values: Tensor) -> Tensor:
    """Return the largest of float[N] as float64; 0 if N is 0."""
    return values.max().double() if values.numel() else torch.zeros((), dtype=torch.float64, device=values.device)


def add_metrics(sums: Mapping[str, Tensor], more: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Combine the metrics of two parts of a minibatch."""
    both = {**sums, **more}
    for name in sums.keys() & more.keys():
        pair = sums[name], more[name]
        both[name] = torch.maximum(*pair) if name.endswith("_max") else pair[0] + pair[1]
    return both


def means(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return means over tokens, and the largest values; the count `tokens` is unchanged.

    For importance weights it adds `weight_chi2`, their mean square - 1, and `weight_ess`, the effective sample size
    (sum w)^2 / sum w^2 as a share of the tokens.
    """
    tokens = sums["tokens"].clamp(min=1)
    measured = {
        name: value if name.endswith("_max") or name == "tokens" else value / tokens for name, value in sums.items()
    }
    if "weight_square_mean" in measured:
        square = measured.pop("weight_square_mean")
        measured["weight_chi2"] = square - 1
        measured["weight_ess"] = measured["weight_mean"].square() / square.clamp(min=torch.finfo(torch.float64).tiny)
    return measured
