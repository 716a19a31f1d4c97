"""What holds for every loss under every aggregation and correction."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.infra.errors import UsageError
from headrace.trainers.losses import (
    AGGREGATIONS,
    CORRECTIONS,
    DIVERGENCES,
    LOSSES,
    Objective,
    Totals,
    TrainedTokens,
    add_metrics,
    means,
    objective_of,
    policy_loss,
)

LOSS_TABLES: list[dict[str, Any]] = [
    *({"use": name} for name in LOSSES),
    {"use": "ppo", "dual_clip": 1.2},
    {"use": "decoupled_ppo", "proximal": "interpolated", "behaviour_upper": 1.5},
    {"use": "decoupled_ppo", "behaviour_level": "sequence", "behaviour_metric": "k3", "behaviour_upper": 0.05},
    {"use": "decoupled_ppo", "behaviour_action": "clamp", "behaviour_upper": 1.2, "dual_clip": 1.3},
    *({"use": "m2po", "variant": variant, "budget": 0.03} for variant in ("cap_exact", "cap_suffix", "mask")),
    {"use": "gspo", "form": "token", "clip_low": 0.05, "clip_high": 0.05},
    {"use": "gspo", "clip_low": 0.05, "clip_high": 0.05},
    {"use": "gmpo", "clip_low": 0.1, "clip_high": 0.1},
    {"use": "dppo", "variant": "ipo", "threshold": 0.05},
]
AGGREGATION_TABLES = [{"use": name, **({"length": 16} if name == "constant" else {})} for name in AGGREGATIONS]
CORRECTION_TABLES: list[Any] = [
    None,
    *CORRECTIONS,
    {"use": "tis", "level": "sequence", "cap": 1.1},
    {"use": "mis", "level": "sequence", "cap": 1.5},
    {"use": "mis", "cap": 1.2},
    {"use": "rejection", "level": "sequence", "high": 3.0},
    {"use": "rejection", "level": "geometric", "high": 1.2},
    [{"use": "tis", "cap": 1.3}, {"use": "veto", "low": 0.5}],
]
LENGTHS = (3, 1, 5, 2, 4, 1, 6)


def label(table: Any) -> str:
    return str(table).strip("{}").replace("'", "")


PAIRS = [(loss, None) for loss in LOSS_TABLES] + [(LOSS_TABLES[0], correction) for correction in CORRECTION_TABLES]
"""Every loss, and every correction."""


def random_tokens(seed: int, spread: float = 0.3, dtype: torch.dtype = torch.float64) -> TrainedTokens:
    generator = torch.Generator().manual_seed(seed)
    size = sum(LENGTHS)

    def normal(scale: float) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64) * scale

    behaviour = -normal(1.0).exp()
    proximal = behaviour + normal(spread)
    return TrainedTokens(
        logprobs=(proximal + normal(spread)).to(dtype).requires_grad_(),
        behaviour_logprobs=behaviour.to(dtype),
        advantages=normal(1.0).to(dtype),
        sequences=torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS)),
        proximal=proximal.to(dtype),
        reference=(behaviour + normal(spread)).to(dtype),
        entropies=normal(1.0).exp().to(dtype).requires_grad_(),
        versions=torch.randint(-1, 6, (size,), generator=generator),
        version=4,
    )


def all_terms(loss: dict[str, Any], aggregation: Any, correction: Any, **more: Any) -> Objective:
    kl = {"use": "k3", "weight": 0.3, "unbiased": True}
    return objective_of(loss, aggregation, correction=correction, kl=kl, entropy=0.1, **more)


def gradients(loss: Tensor, tokens: TrainedTokens) -> tuple[Tensor, ...]:
    found = torch.autograd.grad(loss, [tokens.logprobs, tokens.entropies], allow_unused=True)
    return tuple(torch.zeros_like(tokens.logprobs) if one is None else one for one in found)


# ------------------------------------------------------------------------------------------------------- cut every way

CUT = [[6, 0], [5, 1, 3], [2], [4]]


@pytest.mark.parametrize(("loss", "correction"), PAIRS, ids=label)
def test_the_gradient_does_not_depend_on_how_a_minibatch_is_cut(loss: dict[str, Any], correction: Any) -> None:
    tokens = random_tokens(1)
    cut = [torch.cat([(tokens.sequences == member).nonzero().flatten() for member in members]) for members in CUT]
    for number, aggregation in enumerate(AGGREGATION_TABLES):
        objective = all_terms(loss, aggregation, correction, count_rejected=number % 2 == 1)
        bounds = objective.bounds(tokens)
        totals = objective.totals(tokens, len(LENGTHS) + 2, bounds)
        whole, sums = objective.compute_loss_share(tokens, totals, bounds)
        shares: Tensor = torch.zeros((), dtype=torch.float64)
        told: dict[str, Tensor] = {}
        for index in cut:
            part = bounds.part(index) if bounds is not None else None
            share, metrics = objective.compute_loss_share(tokens.part(index), totals, part)
            shares = shares + share
            told = add_metrics(told, metrics)
        assert shares.item() == pytest.approx(whole.item(), rel=1e-9, abs=1e-12)
        for got, right in zip(gradients(shares, tokens), gradients(whole, tokens), strict=True):
            assert (got - right).abs().max().item() < 1e-12
        assert told.keys() == sums.keys()
        for name, value in means(sums).items():
            assert means(told)[name].item() == pytest.approx(value.item(), rel=1e-9, abs=1e-12), name


def test_a_part_without_the_bounds_of_its_minibatch_is_refused() -> None:
    objective, tokens = objective_of("m2po"), random_tokens(1)
    with pytest.raises(UsageError, match="needs the bounds of the whole minibatch"):
        objective.compute_loss_share(tokens, Totals(22, 7, 7))


# ------------------------------------------------------------------------------------------------- finite differences


def test_the_gradient_of_a_kl_term_is_that_of_its_value() -> None:
    tokens = random_tokens(4)
    for name, unbiased in itertools.product(DIVERGENCES, (False, True)):
        kl = {"use": name, "weight": 1.0, "unbiased": unbiased}

        def value(logprobs: Tensor, kl: dict[str, Any] = kl) -> Tensor:
            return policy_loss(replace(tokens, logprobs=logprobs), "sapo", kl=kl)[0]

        assert torch.autograd.gradcheck(value, (tokens.logprobs,)), kl


# ------------------------------------------------------------------------------------------------------------ extremes


def far_tokens(dtype: torch.dtype) -> TrainedTokens:
    """Return tokens at which a ratio overflows, underflows, has no advantage, or nothing is wrong."""
    far = [0.0, -1e4, -1e4, 0.0, -30.0, -0.1, 0.0, -1e4]
    behaviour = [-1e4, 0.0, -1e4, 0.0, -0.1, -30.0, -1e4, 0.0]
    advantages = [1.0, 1.0, 0.0, 0.0, -1.0, -1.0, -1.0, 0.0]
    reference = [0.0, -1e4, 0.0, -30.0, -30.0, -1e4, -1e4, 0.0]
    return TrainedTokens(
        logprobs=torch.tensor(far, dtype=dtype, requires_grad=True),
        behaviour_logprobs=torch.tensor(behaviour, dtype=dtype),
        advantages=torch.tensor(advantages, dtype=dtype),
        sequences=torch.tensor([0, 0, 0, 1, 2, 2, 3, 3]),
        proximal=torch.tensor(far[::-1], dtype=dtype),
        reference=torch.tensor(reference, dtype=dtype),
        entropies=torch.zeros(8, dtype=dtype, requires_grad=True),
        versions=torch.tensor([0, 1, 2, 3, -1, 4, 5, 6]),
        version=4,
    )


@pytest.mark.parametrize(("loss", "correction"), PAIRS, ids=label)
def test_extreme_numbers_stay_finite(loss: dict[str, Any], correction: Any) -> None:
    for number, aggregation in enumerate(AGGREGATION_TABLES):
        dtype = torch.float64 if number == 3 else torch.float32
        kl = {"use": "k3", "place": "reward"} if number == 1 else {"use": "k3", "unbiased": True}
        tokens = far_tokens(dtype)
        value, told = policy_loss(tokens, **loss, aggregation=aggregation, correction=correction, kl=kl, entropy=0.1)
        assert value.dtype == dtype
        assert value.isfinite()
        assert all(slope.isfinite().all() for slope in gradients(value, tokens))
        assert all(metric.isfinite() for metric in told.values()), told


def test_where_all_is_rejected_nothing_moves() -> None:
    everything = {"use": "rejection", "high": 1e30, "low": 1e29}
    for loss, aggregation in itertools.product(LOSS_TABLES, AGGREGATION_TABLES):
        tokens = far_tokens(torch.float32)
        more = {"aggregation": aggregation, "correction": everything, "kl": {"use": "k2"}, "entropy": 1.0}
        value, told = policy_loss(tokens, **loss, **more)
        assert value.item() == 0, (loss, aggregation)
        assert not any(slope.any() for slope in gradients(value, tokens)), (loss, aggregation)
        assert told["rejected_fraction"].item() == 1


def test_one_token_is_enough_and_none_is_a_loss_of_zero() -> None:
    tokens = random_tokens(9)
    for (loss, correction), aggregation in itertools.product(PAIRS, AGGREGATION_TABLES):
        objective = objective_of(loss, aggregation, correction=correction)
        for number in (0, 1):
            few = tokens.part(slice(4, 4 + number))
            bounds = objective.bounds(few)
            value, told = objective.compute_loss_share(few, objective.totals(few, None, bounds), bounds)
            assert value.isfinite(), (loss, correction, aggregation)
            assert number or value.item() == 0, (loss, correction, aggregation)
            assert all(metric.isfinite() for metric in means(told).values()), (loss, correction, aggregation)


# --------------------------------------------------------------------------------------------------- for whoever asks


@pytest.mark.parametrize(
    ("asked", "needs", "has_lookahead"),
    [
        ({}, set(), False),
        ({"loss": "decoupled_ppo"}, {"proximal"}, False),
        ({"loss": {"use": "decoupled_ppo", "proximal": "interpolated"}}, {"versions"}, True),
        ({"loss": {"use": "decoupled_ppo", "proximal": "interpolated"}, "count_rejected": True}, {"versions"}, False),
        ({"loss": "m2po"}, set(), True),
        ({"loss": {"use": "m2po", "variant": "mask"}}, {"proximal"}, False),
        ({"correction": "tis"}, {"proximal"}, False),
        ({"kl": {"weight": 0.1}, "entropy": 0.1}, {"reference", "entropies"}, False),
    ],
)
def test_an_objective_says_what_it_needs(asked: dict[str, Any], needs: set[str], has_lookahead: bool) -> None:
    objective = objective_of(**asked)
    assert objective.needs == needs
    assert objective.has_lookahead == has_lookahead


@pytest.mark.numerics
def test_nothing_asks_the_device_for_a_number() -> None:
    tokens = random_tokens(10)
    there = {name: value for name in TrainedTokens.__slots__ if isinstance(value := getattr(tokens, name), Tensor)}
    tokens = replace(tokens, **{name: value.detach().to("meta") for name, value in there.items()})
    cases = [(loss, AGGREGATION_TABLES[1], "veto") for loss in LOSS_TABLES]
    cases += [({"use": "ppo"}, table, "mis") for table in AGGREGATION_TABLES]
    for loss, aggregation, correction in cases + [(loss, AGGREGATION_TABLES[0], one) for loss, one in PAIRS]:
        objective = all_terms(loss, aggregation, correction)
        bounds = objective.bounds(tokens)
        share, told = objective.compute_loss_share(
            tokens, objective.totals(tokens, None, bounds), bounds
        )  # would raise
        assert share.is_meta
        assert means(told)["ratio_mean"].is_meta
