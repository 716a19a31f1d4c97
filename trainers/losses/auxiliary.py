"""What is minimised beside the policy's loss: a critic's error, and how unevenly a mixture's experts are used."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.infra.errors import UsageError


def value_loss(
    values: Tensor, returns: Tensor, old_values: Tensor, *, clip: float = 0.5, huber: float | None = None
) -> Tensor:
    """Take h(x) = x^2 / 2 of a critic's error, or of its clipped value where that is more: float[N] of float[N].

    max(h(V - R), h(V_old + clip(V - V_old, -clip, clip) - R)), the clipped value loss of PPO's implementations.

    Args:
        values: float[N], V, with gradient.
        returns: float[N], R.
        old_values: float[N], V at the start of the version; no gradient.
        clip: How far V may go for its error to count as made smaller.
        huber: h is linear beyond this error; 10 where one is used. None: h is a square everywhere.
    """
    if clip < 0 or (huber is not None and huber <= 0):
        raise UsageError(f"value_loss: clip must be at least 0 and huber above 0, got {clip} and {huber}")
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(_penalty(values - returns, huber), _penalty(clipped - returns, huber))


def load_balance(shares: Tensor, probabilities: Tensor) -> Tensor:
    """E * sum of f_e P_e over the E experts of a layer (Switch, arXiv 2101.03961): 1 where all are used alike.

    Args:
        shares: float[E], f: the share of tokens sent to each expert; no gradient.
        probabilities: float[E], P: the router's mean probability of each; with gradient. Its weight is 1e-3 to 1e-2.
    """
    return shares.numel() * (shares.detach() * probabilities).sum()


def _penalty(errors: Tensor, huber: float | None) -> Tensor:
    squares = errors.square() / 2
    if huber is None:
        return squares
    return torch.where(errors.abs() <= huber, squares, huber * (errors.abs() - huber / 2))
