"""M2PO (arXiv 2510.01161): trains on very stale data with a bound on the second moment of the log ratio.

The bound holds for a whole minibatch, over all its micro-batches and ranks: `m2po_bounds` computes it once and `m2po`
takes it. delta = log pi_theta - log pi_b. V is the set of tokens that move out of the trust region: A > 0 and rho > 1,
or A < 0 and rho < 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headrace.infra.errors import UsageError
from headrace.trainers.losses.metrics import clip_metrics, ratio_metrics
from headrace.trainers.losses.ppo import surrogate
from headrace.trainers.losses.tokens import MAX_LOG_RATIO, TokenLoss, TrainedTokens, log_ratio

VARIANTS = ("cap", "cap_exact", "cap_suffix", "mask")


@dataclass(frozen=True, slots=True)
class M2Bounds:
    """The bounds for the tokens of a whole minibatch."""

    low: Tensor
    """Scalar: the ratio is clipped to [1 - low, 1 + high]."""
    high: Tensor
    """Scalar."""
    moment: Tensor
    """float64 scalar: the mean of delta^2 over V, or over all tokens for a mask, before any bound."""
    kept: Tensor | None = None
    """bool[N] over the whole minibatch: tokens that the mask keeps; None: all."""

    def part(self, index: Tensor | slice) -> M2Bounds:
        """Return the bounds for `TrainedTokens.part(index)`."""
        return self if self.kept is None else replace(self, kept=self.kept[index])


def m2po(
    tokens: TrainedTokens,
    bounds: M2Bounds | None = None,
    *,
    variant: str = "cap",
    budget: float = 0.04,
    floor_low: float = 0.0,
    floor_high: float = 0.0,
) -> TokenLoss:
    """PPO's surrogate of pi_theta / pi_b, clipped or masked until the second moment is within budget.

    Args:
        tokens: N tokens.
        bounds: Bounds of the minibatch; None: the tokens are the whole minibatch.
        variant: "cap", the authors' code: T is the largest sample value with sum over V of min(delta^2, T^2) below
        budget |V|; the ratio is clipped to [e^-T, e^T], or not at all if V is within budget; T = 0 if no value
        fits. "cap_exact" solves for T instead. "cap_suffix", AstraFlow's: drop the largest deltas of V until the
        mean of the rest is below budget; T is the largest one left, and the ratio stays within [0.05, 21]. "mask",
        AReaL's: over all tokens, with pi_prox instead of pi_theta if available, drop the largest delta^2 (among
        equal ones the first) until the mean of the rest is below budget; at least one token is kept.
        budget: The authors use 0.04; AstraFlow 0.01 or 0.004.
        floor_low: The cap is never tighter than 1 - floor_low. The authors' default is 0.3, but their runs do not use
            it.
        floor_high: The cap is never tighter than 1 + floor_high. The authors' default is 0.5, but their runs do not use
            it.
    """
    if bounds is None:
        bounds = m2po_bounds(tokens, variant=variant, budget=budget, floor_low=floor_low, floor_high=floor_high)
    delta = log_ratio(tokens.logprobs, tokens.behaviour_logprobs)
    ratio = delta.exp()
    low, high = bounds.low.to(ratio.dtype), bounds.high.to(ratio.dtype)
    terms = surrogate(ratio, tokens.advantages, low, high)
    metrics = ratio_metrics(delta) | clip_metrics(ratio, tokens.advantages, low, high)
    with torch.no_grad():
        measured = {
            "m2": bounds.moment,
            "m2_log_low": torch.log1p(-bounds.low),
            "m2_log_high": torch.log1p(bounds.high),
        }
        metrics |= {name: value.double() * delta.numel() for name, value in measured.items()}
    if bounds.kept is None:
        return TokenLoss(terms, metrics)
    return TokenLoss(torch.where(bounds.kept, terms, torch.zeros_like(terms)), metrics, ~bounds.kept)


@torch.no_grad()
def m2po_bounds(
    tokens: TrainedTokens,
    *,
    variant: str = "cap",
    budget: float = 0.04,
    floor_low: float = 0.0,
    floor_high: float = 0.0,
) -> M2Bounds:
    """Compute the bounds from all tokens of a minibatch; parameters as of `m2po`."""
    if variant not in VARIANTS or budget < 0:
        raise UsageError(
            f"m2po: variant must be one of {', '.join(VARIANTS)}, and budget at least 0; got {variant} and {budget}"
        )
    if not (0 <= floor_low < 1 and floor_high >= 0):
        raise UsageError(
            f"m2po: floor_low must be from 0 to below 1, and floor_high at least 0; got floor_low = {floor_low} and "
            f"floor_high = {floor_high}"
        )
    if variant == "mask" and (floor_low or floor_high):
        raise UsageError('m2po: floor_low and floor_high have no effect with variant = "mask": leave them out')
    counted = torch.ones_like(tokens.logprobs, dtype=torch.bool) if tokens.kept is None else tokens.kept
    if variant == "mask":
        now = tokens.logprobs if tokens.proximal is None else tokens.proximal
        kept, moment = _build_mask(log_ratio(now, tokens.behaviour_logprobs).double().square(), counted, budget)
        return M2Bounds(*_range(moment.new_full((), MAX_LOG_RATIO)), moment, kept)
    delta = log_ratio(tokens.logprobs, tokens.behaviour_logprobs).double()
    against = counted & (((tokens.advantages > 0) & (delta > 0)) | ((tokens.advantages < 0) & (delta < 0)))
    squares = delta.square()
    number = against.sum()
    moment = torch.where(against, squares, 0.0).sum() / number.clamp(min=1)
    within = moment <= budget
    if variant == "cap_suffix":
        reach = _cut_suffix(*_sort_ascending(squares, against), budget)
        low, high = _range(_find_beyond(reach, tokens.logprobs.dtype))
        low, high = torch.where(within, 1.0, low).clamp(max=0.95), torch.where(within, torch.inf, high).clamp(max=20.0)
    else:
        solve = _sample_value if variant == "cap" else _solve
        reach = solve(*_sort_ascending(squares, against), budget)
        low, high = _range(torch.where(within, MAX_LOG_RATIO, _find_beyond(reach, tokens.logprobs.dtype)))
    return M2Bounds(low.clamp(min=floor_low), high.clamp(min=floor_high), moment)


def _range(reach: Tensor) -> tuple[Tensor, Tensor]:
    """Return (low, high) of the ratio range [e^-reach, e^reach]; at MAX_LOG_RATIO it contains every ratio."""
    return -torch.expm1(-reach), torch.expm1(reach)


def _find_beyond(reach: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `reach` plus a rounding error, so that the token with this delta always keeps its gradient."""
    return torch.where(reach > 0, reach + 8 * torch.finfo(dtype).eps, reach)


def _sort_ascending(squares: Tensor, among: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sort float64[N] `squares` of the bool[N] tokens; return values padded by infinity, which are values, number."""
    values = torch.where(among, squares, torch.inf).sort().values
    number = among.sum()
    return values, torch.arange(values.numel(), device=values.device) < number, number


def _sample_value(values: Tensor, there: Tensor, number: Tensor, budget: float) -> Tensor:
    """Return the largest T with sum min(delta^2, T^2) < budget * number, T^2 one of the values; 0 if there is none.

    `number` is an int64 scalar: a product with a Python float would be rounded to float32.
    """
    values = torch.where(there, values, 0.0)
    above = number - torch.arange(1, values.numel() + 1, device=values.device)
    capped_sums = values.cumsum(0) + values * above
    return _largest_root(torch.where(there & (capped_sums < budget * number.double()), values, 0.0))


def _solve(values: Tensor, there: Tensor, number: Tensor, budget: float) -> Tensor:
    """Return T with sum min(delta^2, T^2) = budget * number.

    That sum is the least of the lines (sum of the k smallest) + (number - k) T^2, so T^2 is the largest solution.
    """
    values = torch.where(there, values, 0.0)
    before = values.cumsum(0) - values
    left = (number - torch.arange(values.numel(), device=values.device)).clamp(min=1)
    return _largest_root(torch.where(there, (budget * number.double() - before) / left, 0.0))


def _cut_suffix(values: Tensor, there: Tensor, number: Tensor, budget: float) -> Tensor:  # noqa: ARG001 - as the others
    """Return the largest T for which the mean of values up to T^2 is below budget; else the smallest value's."""
    values = torch.where(there, values, 0.0)
    means = values.cumsum(0) / torch.arange(1, values.numel() + 1, device=values.device)
    fits = there & (means < budget)
    fits[:1] |= there[:1]
    return _largest_root(torch.where(fits, values, 0.0))


def _largest_root(squares: Tensor) -> Tensor:
    return squares.max().sqrt() if squares.numel() else squares.new_zeros(())


def _build_mask(squares: Tensor, counted: Tensor, budget: float) -> tuple[Tensor, Tensor]:
    """Return which tokens stay, and the mean before masking."""
    number = counted.sum()
    values, order = torch.where(counted, squares, -1.0).sort(descending=True, stable=True)
    indices = torch.arange(values.numel(), device=values.device)
    sums_of_rest = values.clamp(min=0).flip(0).cumsum(0).flip(0)
    means_of_rest = sums_of_rest / (number - indices).clamp(min=1)
    dropped = ((means_of_rest >= budget) & (indices < number)).sum().clamp(max=(number - 1).clamp(min=0))
    ranks = torch.empty_like(order).scatter_(0, order, indices)
    moment = sums_of_rest[:1].sum() / number.clamp(min=1)
    return counted & (ranks >= dropped), moment
