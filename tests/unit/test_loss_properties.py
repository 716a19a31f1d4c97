"""What holds for every loss under every aggregation and correction."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from some_cases import paired
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
    added,
    interpolated_proximal,
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


def weighs_twice(loss: dict[str, Any], correction: Any) -> bool:
    return loss["use"] in ("decoupled_ppo", "m2po") and label(correction).replace("use: ", "").startswith(
        ("tis", "mis", "ice", "[")
    )


PAIRS = [pair for pair in itertools.product(LOSS_TABLES, CORRECTION_TABLES) if not weighs_twice(*pair)]
SOME_PAIRS = paired(PAIRS, lambda loss, correction: loss == LOSS_TABLES[0] or correction is None, label)
"""For `make test`: every loss, and every correction."""


def random_tokens(seed: int, spread: float = 0.3, dtype: torch.dtype = torch.float64) -> TrainedTokens:
    generator = torch.Generator().manual_seed(seed)
    size = sum(LENGTHS)

    def normal(scale: float) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64) * scale

    behaviour = -normal(1.0).exp()
    proximal = behaviour + normal(spread)
    return TrainedTokens(
        logprobs=(proximal + normal(spread)).to(dtype).requires_grad_(),
        behaviour=behaviour.to(dtype),
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


@pytest.mark.parametrize(("loss", "correction"), SOME_PAIRS)
def test_the_gradient_does_not_depend_on_how_a_minibatch_is_cut(loss: dict[str, Any], correction: Any) -> None:
    tokens = random_tokens(1)
    cut = [torch.cat([(tokens.sequences == member).nonzero().flatten() for member in members]) for members in CUT]
    for number, aggregation in enumerate(AGGREGATION_TABLES):
        objective = all_terms(loss, aggregation, correction, count_rejected=number % 2 == 1)
        bounds = objective.bounds(tokens)
        totals = objective.totals(tokens, len(LENGTHS) + 2, bounds)
        whole, sums = objective.share(tokens, totals, bounds)
        shares: Tensor = torch.zeros((), dtype=torch.float64)
        told: dict[str, Tensor] = {}
        for index in cut:
            part = bounds.part(index) if bounds is not None else None
            share, metrics = objective.share(tokens.part(index), totals, part)
            shares = shares + share
            told = added(told, metrics)
        assert shares.item() == pytest.approx(whole.item(), rel=1e-9, abs=1e-12)
        for got, right in zip(gradients(shares, tokens), gradients(whole, tokens), strict=True):
            assert (got - right).abs().max().item() < 1e-12
        assert told.keys() == sums.keys()
        for name, value in means(sums).items():
            assert means(told)[name].item() == pytest.approx(value.item(), rel=1e-9, abs=1e-12), name


def test_means_of_micro_batch_means_would_be_another_loss() -> None:
    tokens = random_tokens(2)
    first = torch.arange(sum(LENGTHS)) < 3
    alone = [policy_loss(tokens.part(part))[0].item() for part in (first, ~first)]
    assert sum(alone) / 2 != pytest.approx(policy_loss(tokens)[0].item(), rel=1e-3)


def test_a_part_without_the_bounds_of_its_minibatch_is_refused() -> None:
    objective, tokens = objective_of("m2po"), random_tokens(1)
    with pytest.raises(UsageError, match="bounds of the whole minibatch are missing"):
        objective.share(tokens, Totals(22, 7, 7))


# ------------------------------------------------------------------------------------------------- finite differences

STOPPED = ("cispo", "form: token", "interpolated")
"""What holds a part of its value without gradient: checked below, and by its formula elsewhere."""


@pytest.mark.parametrize("aggregation", AGGREGATION_TABLES, ids=label)
@pytest.mark.parametrize(
    "loss", [table for table in LOSS_TABLES if not any(word in label(table) for word in STOPPED)], ids=label
)
def test_the_gradient_is_that_of_the_value(loss: dict[str, Any], aggregation: dict[str, Any]) -> None:
    tokens = random_tokens(3)
    objective = objective_of(loss, aggregation, correction={"use": "rejection", "high": 3.0}, entropy=0.1)
    bounds = objective.bounds(tokens)
    totals = objective.totals(tokens, None, bounds)

    def value(logprobs: Tensor, entropies: Tensor) -> Tensor:
        return objective.share(replace(tokens, logprobs=logprobs, entropies=entropies), totals, bounds)[0]

    # A bound of M2PO is the value of one of the tokens: a step away, none stands on the edge.
    moved = (tokens.logprobs + 0.01).detach().requires_grad_()
    assert torch.autograd.gradcheck(value, (moved, tokens.entropies))


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_the_gradient_of_a_kl_term_is_that_of_its_value(name: str, unbiased: bool) -> None:
    tokens = random_tokens(4)

    def value(logprobs: Tensor) -> Tensor:
        term = {"use": name, "weight": 1.0, "unbiased": unbiased}
        return policy_loss(replace(tokens, logprobs=logprobs), "sapo", kl=term)[0]

    assert torch.autograd.gradcheck(value, (tokens.logprobs,))


def test_an_interpolated_proximal_policy_is_as_good_as_a_given_one_of_the_same_numbers() -> None:
    tokens = random_tokens(5)
    assert tokens.versions is not None
    near = interpolated_proximal(tokens.logprobs, tokens.behaviour, tokens.versions, 4)
    assert not near.requires_grad
    guessed, _ = policy_loss(tokens, "decoupled_ppo", proximal="interpolated")
    given, _ = policy_loss(replace(tokens, proximal=near), "decoupled_ppo")
    assert guessed.item() == given.item()
    assert torch.equal(gradients(guessed, tokens)[0], gradients(given, tokens)[0])


def test_weights_carry_no_gradient() -> None:
    tokens = replace(random_tokens(6), proximal=None)
    loss, _ = policy_loss(tokens, "gpg", correction="tis")
    weights = (tokens.logprobs - tokens.behaviour).exp().clamp(max=2).detach()
    torch.testing.assert_close(gradients(loss, tokens)[0], -weights * tokens.advantages / sum(LENGTHS))


# ------------------------------------------------------------------------------------------------------------ extremes


def far_tokens(dtype: torch.dtype) -> TrainedTokens:
    """Return tokens at which a ratio overflows, underflows, has no advantage, or nothing is wrong."""
    far = [0.0, -1e4, -1e4, 0.0, -30.0, -0.1, 0.0, -1e4]
    behaviour = [-1e4, 0.0, -1e4, 0.0, -0.1, -30.0, -1e4, 0.0]
    advantages = [1.0, 1.0, 0.0, 0.0, -1.0, -1.0, -1.0, 0.0]
    reference = [0.0, -1e4, 0.0, -30.0, -30.0, -1e4, -1e4, 0.0]
    return TrainedTokens(
        logprobs=torch.tensor(far, dtype=dtype, requires_grad=True),
        behaviour=torch.tensor(behaviour, dtype=dtype),
        advantages=torch.tensor(advantages, dtype=dtype),
        sequences=torch.tensor([0, 0, 0, 1, 2, 2, 3, 3]),
        proximal=torch.tensor(far[::-1], dtype=dtype),
        reference=torch.tensor(reference, dtype=dtype),
        entropies=torch.zeros(8, dtype=dtype, requires_grad=True),
        versions=torch.tensor([0, 1, 2, 3, -1, 4, 5, 6]),
        version=4,
    )


@pytest.mark.parametrize(("loss", "correction"), SOME_PAIRS)
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


@pytest.mark.parametrize("loss", LOSS_TABLES, ids=label)
def test_without_advantage_there_is_no_gradient(loss: dict[str, Any]) -> None:
    tokens = random_tokens(7)
    tokens = replace(tokens, advantages=torch.zeros_like(tokens.advantages))
    options = {"kl_tau": 0.0} if loss["use"] == "dppo" else {}
    value, _ = policy_loss(tokens, **loss, **options)
    assert value.item() == 0
    assert not gradients(value, tokens)[0].any()


@pytest.mark.parametrize("aggregation", AGGREGATION_TABLES, ids=label)
@pytest.mark.parametrize("loss", LOSS_TABLES, ids=label)
def test_where_all_is_rejected_nothing_moves(loss: dict[str, Any], aggregation: dict[str, Any]) -> None:
    tokens = far_tokens(torch.float32)
    everything = {"use": "rejection", "high": 1e30, "low": 1e29}
    kl = {"use": "k2"}
    value, told = policy_loss(tokens, **loss, aggregation=aggregation, correction=everything, kl=kl, entropy=1.0)
    assert value.item() == 0
    assert not any(slope.any() for slope in gradients(value, tokens))
    assert told["rejected_fraction"].item() == 1


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
@pytest.mark.parametrize("loss", LOSS_TABLES, ids=label)
def test_a_rejected_sequence_counts_as_if_it_were_not_there(loss: dict[str, Any], aggregation: str) -> None:
    tokens = random_tokens(8)
    assert tokens.proximal is not None
    third = tokens.sequences == 2
    spoiled = replace(tokens, proximal=torch.where(third, tokens.behaviour - 50, tokens.proximal))
    value, _ = policy_loss(spoiled, **loss, aggregation=aggregation, correction="veto", entropy=0.2)
    alone, _ = policy_loss(tokens.part(~third), **loss, aggregation=aggregation, entropy=0.2)
    assert value.item() == pytest.approx(alone.item(), rel=1e-9)
    slopes, right = gradients(value, tokens)[0], gradients(alone, tokens)[0]
    assert not slopes[third].any()
    torch.testing.assert_close(slopes, right)


@pytest.mark.parametrize("loss", LOSS_TABLES, ids=label)
def test_one_token_is_enough_and_none_is_a_loss_of_zero(loss: dict[str, Any]) -> None:
    tokens = random_tokens(9)
    for aggregation, correction in itertools.product(AGGREGATION_TABLES, CORRECTION_TABLES):
        if weighs_twice(loss, correction):
            continue
        objective = objective_of(loss, aggregation, correction=correction)
        for number in (0, 1):
            few = tokens.part(slice(4, 4 + number))
            bounds = objective.bounds(few)
            value, told = objective.share(few, objective.totals(few, None, bounds), bounds)
            assert value.isfinite()
            assert number or value.item() == 0
            assert all(metric.isfinite() for metric in means(told).values())


# --------------------------------------------------------------------------------------------------- for whoever asks


@pytest.mark.parametrize(
    ("asked", "needs", "looks_ahead"),
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
def test_an_objective_says_what_it_needs(asked: dict[str, Any], needs: set[str], looks_ahead: bool) -> None:
    objective = objective_of(**asked)
    assert objective.needs == needs
    assert objective.looks_ahead == looks_ahead


@pytest.mark.parametrize(
    ("loss", "aggregation", "correction"),
    [
        *((loss, AGGREGATION_TABLES[1], "veto") for loss in LOSS_TABLES),
        *(("ppo", table, "mis") for table in AGGREGATION_TABLES),
        *(("ppo", AGGREGATION_TABLES[0], table) for table in CORRECTION_TABLES),
    ],
    ids=label,
)
def test_nothing_asks_the_device_for_a_number(loss: Any, aggregation: dict[str, Any], correction: Any) -> None:
    tokens = random_tokens(10)
    there = {name: value for name in TrainedTokens.__slots__ if isinstance(value := getattr(tokens, name), Tensor)}
    tokens = replace(tokens, **{name: value.detach().to("meta") for name, value in there.items()})
    objective = all_terms(loss, aggregation, correction)
    bounds = objective.bounds(tokens)
    share, told = objective.share(
        tokens, objective.totals(tokens, None, bounds), bounds
    )  # would raise: there is no number
    assert share.is_meta
    assert means(told)["ratio_mean"].is_meta
