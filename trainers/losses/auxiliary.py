"""Losses besides the policy's loss: a critic's error, and the load balance of a mixture of experts."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.infra.errors import UsageError


def value_loss(
    values: Tensor, returns: Tensor, old_values: Tensor, *, clip: float = 0.5, huber: float | None = None
) -> Tensor:
    """Return h(x) = x^2 / 2 of a critic's error, or of the clipped value's error if larger: float[N] of float[N].

    max(h(V - R), h(V_old + clip(V - V_old, -clip, clip) - R)), the clipped value loss of PPO's implementations.

    Args:
        values: float[N], V, with gradient.
        returns: float[N], R.
        old_values: float[N], V at the start of the version; no gradient.
        clip: Largest change of V that can reduce its loss.
        huber: h is linear beyond this error (10 is usual). None: h is a square everywhere.
    """
    if clip < 0 or (huber is not None and huber <= 0):
        raise UsageError(f"value_loss: clip must be at least 0 and huber above 0, got {clip} and {huber}")
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(_penalty(values - returns, huber), _penalty(clipped - returns, huber))


def load_balance(shares: Tensor, probabilities: Tensor) -> Tensor:
    """Return E * sum of f_e P_e over the E experts of a layer (Switch, arXiv 2101.03961); 1 means equal use.

    Args:
        shares: float[E], f: the share of tokens sent to each expert; no gradient.
        probabilities: float[E], P: the router's mean probability of each expert; with gradient. Usual weights of this
            loss are 1e-3 to 1e-2.
    """
    return shares.numel() * (shares.detach() * probabilities).sum()


def _penalty(errors: Tensor, huber: float | None) -> Tensor:
    squares = errors.square() / 2
    if huber is None:
        return squares
    return torch.where(errors.abs() <= huber, squares, huber * (errors.abs() - huber / 2))
