"""The losses once more, from their papers: float64, one sequence and one token after the other, in plain Python.

Slow, and without a line in common with `trainers.losses`. A token's log-probability stands here twice: `now`, and
`held` where a paper stops the gradient, so that a finite difference over `now` alone is the gradient that is meant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any


@dataclass(frozen=True)
class Token:
    now: float
    held: float
    behaviour: float
    advantage: float
    proximal: float
    reference: float
    entropy: float
    version: int


Sequences = list[list[Token]]
Numbers = list[list[float]]
Flags = list[list[bool]]
EDGE = 5e-7
"""By how much a bound that is a token's own log ratio lies beyond it, so that the token's slope is one and not half."""
CURRENT = 4
"""The version that `proximal` is of."""


def clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def sign(value: float) -> float:
    return (value > 0) - (value < 0)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def surrogate(ratio: float, advantage: float, low: float, high: float) -> float:
    return -min(ratio * advantage, clip(ratio, low, high) * advantage)


# --------------------------------------------------------------------------------------------------------------- losses


def per_token(rule: Callable[[Token], float], sequences: Sequences) -> Numbers:
    return [[rule(token) for token in sequence] for sequence in sequences]


def ppo(sequences: Sequences, clip_low: float = 0.2, clip_high: float = 0.28, dual_clip: float = math.inf) -> Numbers:
    def rule(token: Token) -> float:
        ratio = math.exp(token.now - token.behaviour)
        loss = surrogate(ratio, token.advantage, 1 - clip_low, 1 + clip_high)
        return min(loss, -dual_clip * token.advantage) if token.advantage < 0 else loss

    return per_token(rule, sequences)


def proximal_on_the_line(token: Token) -> float:
    if token.version < 0 or token.version > CURRENT:
        return token.behaviour
    alpha = clip((CURRENT - token.version) / (CURRENT + 1 - token.version), 0, 1)
    return token.behaviour + alpha * (token.held - token.behaviour)


METRICS = {
    "ratio": lambda w: w,
    "k1": lambda w: -math.log(w),
    "k2": lambda w: math.log(w) ** 2 / 2,
    "k3": lambda w: w - 1 - math.log(w),
}


def decoupled_ppo(
    sequences: Sequences,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float = math.inf,
    proximal: str = "forward",
    **bounds: Any,
) -> tuple[Numbers, Flags]:
    losses, rejected = [], []
    for sequence in sequences:
        if proximal == "interpolated":
            sequence = [replace(token, proximal=proximal_on_the_line(token)) for token in sequence]  # noqa: PLW2901
        weights = behaviour_weights([math.exp(token.proximal - token.behaviour) for token in sequence], **bounds)
        row = []
        for token, weight in zip(sequence, weights, strict=True):
            ratio = math.exp(token.now - token.proximal)
            loss = surrogate(ratio, token.advantage, 1 - clip_low, 1 + clip_high)
            loss = min(loss, -dual_clip * token.advantage) if token.advantage < 0 else loss
            row.append(0.0 if weight is None else weight * loss)
        losses.append(row)
        rejected.append([weight is None for weight in weights])
    return losses, rejected


def behaviour_weights(
    weights: list[float],
    behaviour_level: str = "token",
    behaviour_action: str = "mask",
    behaviour_metric: str = "ratio",
    behaviour_upper: float | None = 5.0,
    behaviour_lower: float | None = None,
) -> list[float | None]:
    low = -math.inf if behaviour_lower is None else behaviour_lower
    high = math.inf if behaviour_upper is None else behaviour_upper
    measured = [METRICS[behaviour_metric](weight) for weight in weights]
    if behaviour_level == "sequence" and behaviour_metric == "ratio":
        weights = measured = [math.prod(weights) ** (1 / len(weights))] * len(weights)
    elif behaviour_level == "sequence":
        measured = [mean(measured)] * len(weights)
    if behaviour_action == "clamp":
        return [clip(weight, low, high) for weight in weights]
    return [weight if low <= value <= high else None for weight, value in zip(weights, measured, strict=True)]


def m2po(
    sequences: Sequences, variant: str = "cap", budget: float = 0.04, floor_low: float = 0.0, floor_high: float = 0.0
) -> tuple[Numbers, Flags]:
    tokens = [token for sequence in sequences for token in sequence]
    if variant == "mask":
        left = sorted(range(len(tokens)), key=lambda index: (tokens[index].proximal - tokens[index].behaviour) ** 2)
        squares = [(token.proximal - token.behaviour) ** 2 for token in tokens]
        while len(left) > 1 and mean([squares[index] for index in left]) >= budget:
            left.pop()
        indices = iter(range(len(tokens)))
        rejected = [[next(indices) not in left for _ in sequence] for sequence in sequences]
        return per_token(lambda token: -token.advantage * math.exp(token.now - token.behaviour), sequences), rejected
    against = sorted(
        abs(token.held - token.behaviour)
        for token in tokens
        if (token.advantage > 0 and token.held > token.behaviour)
        or (token.advantage < 0 and token.held < token.behaviour)
    )
    low, high = m2_range(against, variant, budget)
    low, high = min(low, 1 - floor_low), max(high, 1 + floor_high)
    return per_token(
        lambda token: surrogate(math.exp(token.now - token.behaviour), token.advantage, low, high), sequences
    ), [[False] * len(sequence) for sequence in sequences]


def m2_range(against: list[float], variant: str, budget: float) -> tuple[float, float]:
    def capped(reach: float) -> float:
        return mean([min(gap, reach) ** 2 for gap in against])

    within = not against or mean([gap**2 for gap in against]) <= budget
    if variant == "cap_suffix":
        if within:
            return 0.05, 21.0
        rest = list(against)
        while mean([gap**2 for gap in rest]) >= budget and len(rest) > 1:
            rest.pop()
        return max(0.05, math.exp(-rest[-1] - EDGE)), min(21.0, math.exp(rest[-1] + EDGE))
    if within:
        return 0.0, math.inf
    if variant == "cap":
        reach = max((gap for gap in against if capped(gap) < budget), default=0.0)
    else:
        reach, too_far = 0.0, against[-1]
        for _ in range(200):
            middle = (reach + too_far) / 2
            reach, too_far = (middle, too_far) if capped(middle) <= budget else (reach, middle)
    reach += (reach > 0) * EDGE
    return math.exp(-reach), math.exp(reach)


def gspo(sequences: Sequences, clip_low: float = 3e-4, clip_high: float = 4e-4, form: str = "sequence") -> Numbers:
    losses = []
    for sequence in sequences:
        ratio = math.exp(mean([token.now - token.behaviour for token in sequence]))
        held = math.exp(mean([token.held - token.behaviour for token in sequence]))
        advantage = mean([token.advantage for token in sequence])
        if form == "sequence":
            losses.append([surrogate(ratio, advantage, 1 - clip_low, 1 + clip_high)] * len(sequence))
        else:
            losses.append(
                [
                    surrogate(
                        held * math.exp(token.now) / math.exp(token.held), token.advantage, 1 - clip_low, 1 + clip_high
                    )
                    for token in sequence
                ]
            )
    return losses


def gmpo(sequences: Sequences, clip_low: float = 0.4, clip_high: float = 0.4) -> Numbers:
    losses = []
    for sequence in sequences:
        total = 0.0
        for token in sequence:
            gap, side = token.now - token.behaviour, sign(token.advantage)
            total += side * min(side * gap, side * clip(gap, -clip_low, clip_high))
        loss = -mean([token.advantage for token in sequence]) * math.exp(total / len(sequence))
        losses.append([loss] * len(sequence))
    return losses


def cispo(sequences: Sequences, clip_low: float | None = None, clip_high: float = 4.0) -> Numbers:
    low = 0.0 if clip_low is None else 1 - clip_low
    return per_token(
        lambda token: -clip(math.exp(token.held - token.behaviour), low, 1 + clip_high) * token.advantage * token.now,
        sequences,
    )


def sapo(sequences: Sequences, tau_positive: float = 1.0, tau_negative: float = 1.05) -> Numbers:
    def rule(token: Token) -> float:
        tau = tau_positive if token.advantage > 0 else tau_negative
        gate = 1 / (1 + math.exp(-tau * (math.exp(token.now - token.behaviour) - 1)))
        return -token.advantage * 4 / tau * gate

    return per_token(rule, sequences)


def dppo(
    sequences: Sequences,
    variant: str = "dppo",
    threshold: float | None = None,
    adv_tau: float = 1.0,
    kl_tau: float = 1e-3,
) -> Numbers:
    most = {"dppo": 0.2, "ipo": 0.1}[variant] if threshold is None else threshold

    def rule(token: Token) -> float:
        change = math.exp(token.held) - math.exp(token.behaviour)
        if variant == "ipo":
            change = abs(change)
        elif token.advantage <= 0:
            change = -change
        masked = change > most
        policy = 0.0 if masked else adv_tau * token.advantage * math.exp(token.now - token.behaviour)
        return -policy + kl_tau * (token.now - token.behaviour) ** 2

    return per_token(rule, sequences)


def gpg(sequences: Sequences) -> Numbers:
    return per_token(lambda token: -token.advantage * token.now, sequences)


LOSSES: dict[str, Callable[..., Any]] = {
    "ppo": ppo,
    "decoupled_ppo": decoupled_ppo,
    "m2po": m2po,
    "gspo": gspo,
    "gmpo": gmpo,
    "cispo": cispo,
    "sapo": sapo,
    "dppo": dppo,
    "gpg": gpg,
}


# --------------------------------------------------------------------------------------------------------- corrections


def corrected(sequence: list[Token], use: str, **options: Any) -> Iterator[tuple[float, bool]]:
    """Yield of each token its weight, and whether it is rejected."""
    weights = [math.exp(token.proximal - token.behaviour) for token in sequence]
    product = math.prod(weights)
    level = options.get("level", "token")
    for weight in weights:
        measured = weight if level == "token" else product
        if use == "tis":
            yield min(measured, options.get("cap", 2.0)), False
        elif use == "mis":
            yield measured, measured > options.get("cap", 2.0)
        elif use == "icepop":
            yield weight, not options.get("low", 0.2) <= weight <= options.get("high", 5.0)
        elif use == "veto":
            yield 1.0, any(other < options.get("low", 1e-4) for other in weights)
        else:
            if level == "geometric":
                measured = product ** (1 / len(weights))
            high = options.get("high", 1.001 if level == "geometric" else 2.0)
            yield 1.0, not options.get("low", 1 / high) <= measured <= high


# --------------------------------------------------------------------------------------------------- all of it together


def aggregated(rows: Numbers, kept: Flags, use: str, length: int = 1, *, count_rejected: bool = False) -> float:
    counted = [[True] * len(row) for row in kept] if count_rejected else kept
    sums = [
        sum(value for value, stays in zip(row, flags, strict=True) if stays)
        for row, flags in zip(rows, kept, strict=True)
    ]
    lengths = [sum(flags) for flags in counted]
    if use == "token_mean":
        return sum(sums) / max(1, sum(lengths))
    if use == "sequence_mean":
        there = [total / size for total, size in zip(sums, lengths, strict=True) if size]
        return sum(there) / max(1, len(there))
    return mean(sums) / (length if use == "constant" else 1)


def policy_loss(  # noqa: PLR0913 - as the function that it stands against
    sequences: Sequences,
    loss: dict[str, Any],
    aggregation: dict[str, Any],
    correction: dict[str, Any] | None = None,
    kl: float = 0.0,
    entropy: float = 0.0,
    *,
    count_rejected: bool = False,
) -> float:
    """KL is k3 of the current policy to the reference, times the ratio; other settings as of `trainers.losses`."""
    options = {name: value for name, value in loss.items() if name != "use"}
    weights, out = [[1.0] * len(row) for row in sequences], [[False] * len(row) for row in sequences]
    seen = sequences
    if correction is not None:
        both = [list(corrected(sequence, **correction)) for sequence in sequences]
        weights, out = [[pair[0] for pair in row] for row in both], [[pair[1] for pair in row] for row in both]
        if correction["use"] in ("tis", "mis", "icepop"):
            seen = [[replace(token, behaviour=token.proximal) for token in sequence] for sequence in sequences]
    # A loss sees only what is left, so that a sequence's statistics are over what is left of it.
    left = [
        [token for token, gone in zip(row, flags, strict=True) if not gone]
        for row, flags in zip(seen, out, strict=True)
    ]
    found = LOSSES[loss["use"]]([row for row in left if row], **options)
    found_rows, found_out = found if isinstance(found, tuple) else (found, [[False] * len(row) for row in found])
    losses, gone_too = chain.from_iterable(found_rows), chain.from_iterable(found_out)
    rows, kept = [], []
    for sequence, row_weights, flags in zip(sequences, weights, out, strict=True):
        row, stays = [], []
        for token, weight, gone in zip(sequence, row_weights, flags, strict=True):
            stays.append(not gone and not next(gone_too))
            if gone:
                row.append(0.0)
                continue
            gap = token.now - token.reference
            k3 = math.exp(token.now - token.behaviour) * (math.exp(-gap) - 1 + gap)
            row.append(weight * next(losses) + kl * k3 - entropy * token.entropy)
        rows.append(row)
        kept.append(stays)
    return aggregated(rows, kept, count_rejected=count_rejected, **aggregation)
