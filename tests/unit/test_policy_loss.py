import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.infra.errors import UsageError
from headrace.trainers.losses import (
    DIVERGENCES,
    Totals,
    TrainedTokens,
    add_metrics,
    constant,
    means,
    objective_of,
    policy_loss,
    sequence_mean,
    sequence_sum,
    token_mean,
    totals_of,
)


def tokens_of(delta: list[float], advantages: list[float], **more: Any) -> TrainedTokens:
    behaviour = torch.full((len(delta),), -1.0, dtype=torch.float64)
    logprobs = (behaviour + torch.tensor(delta, dtype=torch.float64)).requires_grad_()
    sequences = torch.zeros(len(delta), dtype=torch.int64)
    return TrainedTokens(
        logprobs, behaviour, torch.tensor(advantages, dtype=torch.float64), **{"sequences": sequences, **more}
    )


def gradient(value: Tensor, *, of: TrainedTokens) -> list[float]:
    (found,) = torch.autograd.grad(value, of.logprobs)
    return [float(number) for number in found]


# ------------------------------------------------------------------------------------------------------- divergence


@pytest.mark.parametrize(("name", "gap", "value"), [("k1", 0.1, 0.1), ("k2", 0.1, 0.005), ("k3", 0.1, 0.0048374)])
def test_estimators_of_kl(name: str, gap: float, value: float) -> None:
    assert DIVERGENCES[name](torch.tensor([gap]), torch.zeros(1)).item() == pytest.approx(value, abs=1e-7)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_beyond_its_clamp_a_divergence_has_no_gradient(name: str) -> None:
    logprobs = torch.tensor([30.0, -30.0, -1e4, 5.0], requires_grad=True)
    values = DIVERGENCES[name](logprobs, torch.zeros(4))
    torch.autograd.backward(values.sum())
    assert logprobs.grad is not None
    assert values[2].item() == values[1].item()
    assert logprobs.grad[:3].tolist() == [0, 0, 0]
    assert logprobs.grad[3].item() != 0


def test_the_kl_term_is_added_with_its_weight_and_told_without() -> None:
    tokens = tokens_of([0.0, 0.0], [0, 0], reference=torch.tensor([-1.1, -0.9], dtype=torch.float64))
    loss, metrics = policy_loss(tokens, kl={"use": "k3", "weight": 0.5})
    mean = (0.0048374 + 0.0051709) / 2
    assert loss.item() == pytest.approx(0.5 * mean, abs=1e-7)
    assert metrics["reference_kl"].item() == pytest.approx(mean, abs=1e-7)


def test_the_unbiased_kl_is_weighed_by_the_ratio_with_its_gradient() -> None:
    tokens = tokens_of([0.3], [0], reference=torch.tensor([-1.2], dtype=torch.float64))
    loss, _ = policy_loss(tokens, kl={"use": "k3", "weight": 1, "unbiased": True})
    gap, ratio = 0.5, math.exp(0.3)
    value = math.exp(-gap) - 1 + gap
    assert loss.item() == pytest.approx(ratio * value)
    assert gradient(loss, of=tokens) == pytest.approx([ratio * value + ratio * (1 - math.exp(-gap))])


def test_the_entropy_bonus_lowers_the_loss_and_carries_gradient() -> None:
    entropies = torch.tensor([1.0, 3.0], dtype=torch.float64, requires_grad=True)
    loss, metrics = policy_loss(tokens_of([0.0, 0.0], [0, 0], entropies=entropies), entropy=0.01)
    torch.autograd.backward(loss)
    assert loss.item() == pytest.approx(-0.02)
    assert entropies.grad is not None
    assert entropies.grad.tolist() == pytest.approx([-0.005, -0.005])
    assert metrics["entropy"].item() == 2


# ------------------------------------------------------------------------------------------------------ aggregation

TERMS = torch.tensor([1.0, 1, 2, 2, 2, 2, 2, 2])
TWO = torch.tensor([0, 0, 1, 1, 1, 1, 1, 1])


@pytest.mark.parametrize(
    ("aggregate", "value"),
    [
        (token_mean, 1.75),
        (sequence_mean, 1.5),
        (sequence_sum, 7.0),
        (lambda *given: constant(*given, length=10), 0.7),
    ],
)
def test_aggregations(aggregate: Callable[..., Tensor], value: float) -> None:
    assert aggregate(TERMS, TWO).item() == pytest.approx(value)
    totals = totals_of(TWO)
    shares = aggregate(TERMS[:2], TWO[:2], None, totals) + aggregate(TERMS[2:], TWO[2:], None, totals)
    assert shares.item() == pytest.approx(value)


def test_a_rejected_token_leaves_the_denominators_and_a_rejected_sequence_the_mean() -> None:
    kept = torch.tensor([False, False, True, True, True, False, False, False])
    terms = torch.where(kept, TERMS, 0)
    assert totals_of(TWO, kept) == Totals(torch.tensor(3), torch.tensor(1), torch.tensor(2))
    assert token_mean(terms, TWO, kept).item() == 2
    assert sequence_mean(terms, TWO, kept).item() == 2
    assert sequence_sum(terms, TWO, kept).item() == 3


def test_sequences_without_a_trained_token_count_in_sums_alone() -> None:
    totals = totals_of(TWO, all_sequences=4)
    assert sequence_sum(TERMS, TWO, None, totals).item() == 3.5
    assert sequence_mean(TERMS, TWO, None, totals).item() == 1.5


# ---------------------------------------------------------------------------------------------------------- metrics


def test_metrics_add_up_over_parts_of_a_minibatch() -> None:
    deltas, advantages = [math.log(1.5), math.log(0.5), 0.0], [1.0, -1.0, 1.0]
    objective = objective_of({"use": "ppo", "clip_low": 0.2, "clip_high": 0.28})
    parts = [tokens_of(deltas[:1], advantages[:1]), tokens_of(deltas[1:], advantages[1:])]
    sums = add_metrics(*(objective.compute_loss_share(part, Totals(3, 2, 2))[1] for part in parts))
    got = {name: value.item() for name, value in means(sums).items()}
    assert got["tokens"] == 3
    assert got["ratio_mean"] == pytest.approx(1.0)
    assert got["ratio_max"] == pytest.approx(1.5)
    assert got["clip_fraction"] == pytest.approx(2 / 3)
    assert got["clip_fraction_low"] == got["clip_fraction_high"] == pytest.approx(1 / 3)
    assert got["kl_k1"] == pytest.approx(-math.log(0.75) / 3)


# ------------------------------------------------------------------------------------------- names, options, errors


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ({"use": "ppo", "dual_clip": 0.5}, "dual_clip must be above 1"),
        ({"kl": {"beta": 1}}, "kl: no option 'beta'; the options are "),
        ({"kl": {"weight": math.inf}}, "kl: weight must be"),
        ({"use": "m2po", "budget": math.nan}, r"loss, m2po: budget is not a number \(nan\)"),
        ({"use": "sapo", "tau_positive": math.inf}, "sapo: tau_positive and tau_negative must be above 0 and finite"),
        ({"use": "dppo", "threshold": -2.0}, "dppo: threshold must be 0 or more"),
        (
            {"correction": {"use": "icepop", "low": 5.0, "high": 0.2}},
            "icepop: low must not be above high, got low = 5.0 and high = 0.2",
        ),
    ],
)
def test_what_cannot_be_is_said_with_what_can(call: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        policy_loss(tokens_of([0.0], [1]), **call)


def test_what_a_term_needs_and_the_tokens_lack_is_said() -> None:
    with pytest.raises(UsageError, match="reference policy"):
        policy_loss(tokens_of([0.0], [1]), kl={"use": "k3"})
    with pytest.raises(UsageError, match=r"TrainedTokens\.entropies is None"):
        policy_loss(tokens_of([0.0], [1]), entropy=0.1)


@pytest.mark.parametrize("wrong", [torch.zeros(3, 1), torch.zeros(1), torch.zeros(())], ids=["column", "one", "scalar"])
def test_vectors_of_other_lengths_are_refused_and_not_broadcast(wrong: torch.Tensor) -> None:
    good = tokens_of([0.0, 0.1, 0.2], [1, 1, 1])
    for name in ("behaviour_logprobs", "advantages", "sequences", "proximal"):
        with pytest.raises(UsageError, match=rf"must be one-dimensional and of the same length.*{name}"):
            replace(good, **{name: wrong})  # type: ignore[arg-type]  # each is a tensor


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_number_is_refused_with_its_index(wrong: float) -> None:
    good = tokens_of([0.0, 0.1, 0.2], [1, 1, 1], reference=torch.zeros(3, dtype=torch.float64))
    for name in ("logprobs", "behaviour_logprobs", "advantages", "reference"):
        numbers = getattr(good, name).detach().clone()
        numbers[1] = wrong
        with pytest.raises(UsageError, match=f"{name} of token 1 is {wrong}"):
            policy_loss(replace(good, **{name: numbers}))


def test_tokens_of_a_sequence_that_do_not_stand_together_are_refused() -> None:
    apart = torch.tensor([0, 1, 0])
    with pytest.raises(UsageError, match="must be adjacent; those of sequence 0 are not"):
        tokens_of([0.0, 0.1, 0.2], [1, 1, 1], sequences=apart)
    for order in ([0, 0, 1], [1, 0, 0], [5, 3, 3]):
        assert policy_loss(tokens_of([0.1] * 3, [1] * 3, sequences=torch.tensor(order)), "gspo")[0].isfinite()
