"""Decoupled PPO: the trust region is around one policy, the samples come from another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headrace.infra.errors import UsageError
from headrace.trainers.losses.correction import is_within, weight_metrics
from headrace.trainers.losses.metrics import clip_metrics, ratio_metrics
from headrace.trainers.losses.ppo import apply_dual_clip, surrogate
from headrace.trainers.losses.tokens import TokenLoss, TrainedTokens, broadcast_sequence_mean, log_ratio


def decoupled_ppo(  # noqa: PLR0913 - each is a key of the recipe
    tokens: TrainedTokens,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    proximal: str = "forward",
    behaviour_level: str = "token",
    behaviour_action: str = "mask",
    behaviour_metric: str = "ratio",
    behaviour_upper: float | None = 5.0,
    behaviour_lower: float | None = None,
) -> TokenLoss:
    """Decoupled PPO (arXiv 2110.00641; AReaL, arXiv 2505.24298): PPO's loss of ratio u, weighted by w.

    w max(-A u, -A clip(u, 1 - clip_low, 1 + clip_high)), u = pi_theta / pi_prox, w = pi_prox / pi_b without gradient.
    The trust region is around the weights at the start of the version, so staleness does not use it up; the weight w
    corrects for the sampling policy.

    Args:
        tokens: N tokens with `proximal`, or with `versions` and `version` to interpolate it.
        clip_low: As in `ppo`.
        clip_high: As in `ppo`.
        dual_clip: As in `ppo`.
        proximal: "forward": TrainedTokens.proximal. "interpolated": `interpolated_proximal`; it saves a forward pass
            only if no token can be rejected (clamp, no bounds, or `count_rejected`), as rejections must be known first.
        behaviour_level: "token", or "sequence": all tokens get the metric of their sequence. For the ratio this is the
        geometric mean, which is then also the weight; for the others it is the mean.
        behaviour_action: "mask" rejects tokens out of bounds; "clamp" clamps the weight to the bounds (ratio only).
        behaviour_metric: "ratio" w, "k1" = -log w, "k2" = (log w)^2 / 2, "k3" = w - 1 - log w.
        behaviour_upper: Upper bound of the metric; None: no bound.
        behaviour_lower: Lower bound of the metric; None: no bound.
    """
    if clip_low < 0 or clip_high < 0:
        raise UsageError(f"clip_low and clip_high must be at least 0, got {clip_low} and {clip_high}")
    near = _proximal(tokens, proximal)
    log_weights = log_ratio(near, tokens.behaviour_logprobs)
    weights, kept = behaviour_weights(
        log_weights,
        tokens,
        level=behaviour_level,
        action=behaviour_action,
        metric=behaviour_metric,
        bounds=(behaviour_lower, behaviour_upper),
    )
    delta = log_ratio(tokens.logprobs, near)
    ratio = delta.exp()
    terms = surrogate(ratio, tokens.advantages, clip_low, clip_high)
    metrics = ratio_metrics(delta) | clip_metrics(ratio, tokens.advantages, clip_low, clip_high)
    metrics |= weight_metrics(log_weights, weights)
    terms, bounded = apply_dual_clip(terms, tokens.advantages, dual_clip)
    zeros = torch.zeros_like(terms)
    return TokenLoss(torch.where(kept, weights * terms, zeros), metrics | bounded, ~kept)


def behaviour_weights(
    log_weights: Tensor,
    tokens: TrainedTokens,
    *,
    level: str,
    action: str,
    metric: str,
    bounds: tuple[float | None, float | None],
) -> tuple[Tensor, Tensor]:
    """Return the weight float[N] and whether a token is within bounds, bool[N]; options as in `decoupled_ppo`."""
    for name, given, known in (
        ("behaviour_level", level, ("token", "sequence")),
        ("behaviour_action", action, ("mask", "clamp")),
        ("behaviour_metric", metric, _METRICS),
    ):
        if given not in known:
            raise UsageError(f"{name} must be one of {', '.join(known)}; got {given!r}")
    if metric == "ratio" and bounds[1] is not None and bounds[1] <= 0:
        raise UsageError(f"behaviour_upper must be above 0, as every ratio is, got {bounds[1]}")
    if action == "clamp" and metric != "ratio":
        raise UsageError(f'behaviour_action = "clamp" needs behaviour_metric = "ratio", got "{metric}"')
    if level == "sequence":
        if metric == "ratio":
            log_weights = broadcast_sequence_mean(log_weights, tokens)
            found = log_weights.exp()
        else:
            found = broadcast_sequence_mean(_METRICS[metric](log_weights), tokens)
    else:
        found = _METRICS[metric](log_weights)
    low, high = (-torch.inf if bounds[0] is None else bounds[0]), (torch.inf if bounds[1] is None else bounds[1])
    if low > high:
        raise UsageError(f"behaviour_lower must not be above behaviour_upper, got {low} and {high}")
    weights = log_weights.exp()
    if action == "clamp":
        return weights.clamp(low, high), torch.ones_like(weights, dtype=torch.bool)
    return weights, is_within(found, low, high)


def interpolated_proximal(logprobs: Tensor, behaviour: Tensor, versions: Tensor, version: int) -> Tensor:
    """Estimate log pi_prox between log pi_b and log pi_theta (A-3PO, arXiv 2512.06547): float[N], no gradient.

    log pi_b + alpha (log pi_theta - log pi_b), alpha = (v_prox - v_b) / (v_theta - v_b) within 0..1, and 0 where
    v_theta <= v_b or v_b is unknown.

    Args:
        logprobs: float[N], log pi_theta.
        behaviour: float[N], log pi_b.
        versions: int[N], v_b; -1 if unknown.
        version: v_prox, the served version while v_theta = version + 1 is trained.
    """
    age = version + 1 - versions
    known = (age > 0) & (versions >= 0)
    alpha = ((version - versions).to(logprobs.dtype) / age.clamp(min=1)).clamp(0, 1)
    alpha = torch.where(known, alpha, torch.zeros_like(alpha))
    return behaviour + alpha * (logprobs.detach() - behaviour)


def _proximal(tokens: TrainedTokens, how: str) -> Tensor:
    if how == "forward":
        if tokens.proximal is None:
            raise UsageError('decoupled_ppo: proximal = "forward" needs TrainedTokens.proximal, and it is None')
        return tokens.proximal
    if how != "interpolated":
        raise UsageError(f"decoupled_ppo: proximal must be forward or interpolated; got {how!r}")
    if tokens.versions is None or tokens.version is None:
        raise UsageError(
            'decoupled_ppo: proximal = "interpolated" needs TrainedTokens.versions and TrainedTokens.version, but one '
            "of them is None"
        )
    return interpolated_proximal(tokens.logprobs, tokens.behaviour_logprobs, tokens.versions, tokens.version)


_METRICS: dict[str, Callable[[Tensor], Tensor]] = {
    "ratio": torch.exp,
    "k1": torch.neg,
    "k2": lambda log_weights: log_weights.square() / 2,
    "k3": lambda log_weights: torch.expm1(log_weights) - log_weights,
}
