"""Estimators of KL(pi_theta || pi_ref) from the log-probabilities of single tokens (Schulman, "Approximating KL")."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headrace.trainers.losses.tokens import number_sequences, sum_sequences

MAX_LOG_GAP = 10.0


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Take x = log pi_theta - log pi_ref, clamped to +-10: float[N] of float[N].

    Unbiased as a value; as a loss its gradient is log pi's, 0 in expectation: use k2 or k3 there.
    """
    return _clamp_gap(logprobs, reference)


def k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Take x^2 / 2, x clamped to +-10: float[N] of float[N]."""
    return _clamp_gap(logprobs, reference).square() / 2


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Take e^-x - 1 + x, x clamped to +-10: float[N] of float[N]; never negative."""
    gap = _clamp_gap(logprobs, reference)
    return torch.expm1(-gap) + gap


def cost_to_go(values: Tensor, sequences: Tensor) -> Tensor:
    """Sum float[N] `values` from each token to the end of its sequence: float[N]; `sequences` as in TrainedTokens."""
    exact = values.double()
    indices = number_sequences(sequences)
    before = exact.cumsum(0) - exact
    ends = sum_sequences(exact, sequences).cumsum(0)
    return (ends[indices] - before).to(values.dtype)


def _clamp_gap(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return x; where the clamp holds it, no gradient."""
    gap = logprobs - reference
    return torch.where(gap.abs() > MAX_LOG_GAP, gap.detach().clamp(-MAX_LOG_GAP, MAX_LOG_GAP), gap)


DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
