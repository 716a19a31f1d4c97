"""Estimators of KL(pi_theta || pi_ref) from the log-probabilities of single tokens (Schulman, "Approximating KL")."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headrace.trainers.losses.tokens import number_sequences, sum_sequences

MAX_LOG_GAP = 10.0


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return x = log pi_theta - log pi_ref, clamped to +-10: float[N] of float[N].

    It is unbiased as a value. As a loss its gradient is that of log pi, which is 0 in expectation: use k2 or k3.
    """
    return _clamp_gap(logprobs, reference)


def k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return x^2 / 2, x clamped to +-10: float[N] of float[N]."""
    return _clamp_gap(logprobs, reference).square() / 2


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return e^-x - 1 + x, x clamped to +-10: float[N] of float[N]; never negative."""
    gap = _clamp_gap(logprobs, reference)
    return torch.expm1(-gap) + gap


def cost_to_go(values: Tensor, sequences: Tensor) -> Tensor:
    """Return float[N]: the sum of `values` from each token to its sequence's end; `sequences` as in TrainedTokens."""
    exact = values.double()
    indices = number_sequences(sequences)
    before = exact.cumsum(0) - exact
    ends = sum_sequences(exact, sequences).cumsum(0)
    return (ends[indices] - before).to(values.dtype)


def _clamp_gap(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return x clamped; clamped values have no gradient."""
    gap = logprobs - reference
    return torch.where(gap.abs() > MAX_LOG_GAP, gap.detach().clamp(-MAX_LOG_GAP, MAX_LOG_GAP), gap)


DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"k1": k1, "k2": k2, "k3": k3}
