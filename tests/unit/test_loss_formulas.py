"""Each loss and correction against the numbers of its paper or of its authors' code, worked out by hand."""

import math
from typing import Any

import pytest
import torch

from headrace.infra.errors import UsageError
from headrace.trainers.losses import (
    TrainedTokens,
    cost_to_go,
    dppo,
    interpolated_proximal,
    m2po_bounds,
    policy_loss,
)


def vector(numbers: list[float]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def tokens_of(delta: list[float], advantages: list[float] | None = None, **more: Any) -> TrainedTokens:
    behaviour = vector([-1.0] * len(delta))
    sequences = torch.zeros(len(delta), dtype=torch.int64)
    return TrainedTokens(
        (behaviour + vector(delta)).requires_grad_(),
        behaviour,
        vector(advantages or [1.0] * len(delta)),
        **{"sequences": sequences, **more},
    )


def weighed(weights: list[float], sequences: list[int] | None = None) -> TrainedTokens:
    proximal = vector([math.log(weight) - 1 for weight in weights])
    numbers = torch.tensor(sequences or [0] * len(weights))
    return tokens_of([0.0] * len(weights), proximal=proximal, sequences=numbers)


# ---------------------------------------------------------------------------------------------------- decoupled PPO


def test_the_proximal_policy_lies_on_the_line_between_behaviour_and_current() -> None:
    near = interpolated_proximal(vector([-0.7]), vector([-1.0]), torch.tensor([3]), 5)
    assert near.tolist() == pytest.approx([-0.8])


@pytest.mark.parametrize(
    ("generated_by", "proximal"),
    [(5, -1.0), (6, -1.0), (7, -1.0), (-1, -1.0), (4, -0.85)],
    ids=["by pi_prox itself", "by the version being made", "by one after it", "unknown", "one version before"],
)
def test_where_versions_leave_no_line_the_proximal_policy_is_the_behaviour(generated_by: int, proximal: float) -> None:
    near = interpolated_proximal(vector([-0.7]), vector([-1.0]), torch.tensor([generated_by]), 5)
    assert near.tolist() == pytest.approx([proximal])


# --------------------------------------------------------------------------------------------------------- corrections

GOLDEN = [0.5, 1.2, 3.0]


def test_what_a_correction_tells() -> None:
    _, told = policy_loss(weighed(GOLDEN), correction="mis")
    assert told["weight_ess"].item() == pytest.approx(2.06642 / 3, abs=1e-5)
    assert told["weight_chi2"].item() == pytest.approx(10.69 / 3 - 1)
    assert told["weight_mean"].item() == pytest.approx(4.7 / 3)
    assert told["weight_max"].item() == pytest.approx(3)
    assert told["weight_kl_k1"].item() == pytest.approx(-math.log(1.8) / 3)
    assert told["weight_kl_k3"].item() == pytest.approx((4.7 - 3 - math.log(1.8)) / 3)
    assert told["weight_perplexity_ratio"].item() == pytest.approx(1 / 1.21644, abs=1e-5)
    assert told["rejected_fraction"].item() == pytest.approx(1 / 3)


def test_rejected_tokens_are_counted_only_when_asked_for() -> None:
    tokens = weighed(GOLDEN)
    out, _ = policy_loss(tokens, "gpg", correction="mis")
    counted, _ = policy_loss(tokens, "gpg", correction="mis", count_rejected=True)
    assert out.item() == pytest.approx((0.5 + 1.2) / 2)
    assert counted.item() == pytest.approx((0.5 + 1.2) / 3)


def test_under_a_weighing_correction_the_ratio_is_to_the_proximal_policy() -> None:
    tokens = tokens_of([math.log(3.0)], proximal=vector([math.log(1.5) - 1]))  # ratio 2, clipped to 1.28; w 1.5
    assert policy_loss(tokens, correction="tis")[0].item() == pytest.approx(-1.28 * 1.5)
    only_rejecting = policy_loss(tokens, correction={"use": "veto"}, clip_high=9.0)[0]
    assert only_rejecting.item() == pytest.approx(-3)


def test_without_a_proximal_policy_the_weight_is_of_the_policy_as_it_is() -> None:
    tokens = tokens_of([math.log(1.5)])
    loss, _ = policy_loss(tokens, correction="tis")
    (slope,) = torch.autograd.grad(loss, tokens.logprobs)
    assert loss.item() == pytest.approx(-1.5)
    assert slope.item() == pytest.approx(-1.5)


def test_several_corrections_multiply_and_reject_together() -> None:
    tokens = weighed([*GOLDEN, 1e-5, 1.0], [0, 0, 0, 1, 1])
    loss, told = policy_loss(tokens, "gpg", correction=[{"use": "tis", "cap": 1.0}, {"use": "veto"}])
    assert loss.item() == pytest.approx((0.5 + 1 + 1) / 3)
    assert told["rejected_fraction"].item() == pytest.approx(2 / 5)


@pytest.mark.parametrize("order", [("tis", "rejection"), ("rejection", "tis")], ids=" ".join)
@pytest.mark.parametrize(
    ("level", "weight"), [("sequence", math.exp(0.3)), ("token", (math.exp(0.1) + math.exp(0.2)) / 2)]
)
def test_a_weight_of_a_sequence_is_over_the_tokens_that_no_other_correction_rejects(
    level: str, weight: float, order: tuple[str, str]
) -> None:
    """Over all three tokens the product would be e^-2.7 = 0.0672."""
    tables = {"tis": {"use": "tis", "level": level, "cap": 10.0}, "rejection": {"use": "rejection", "high": 2.0}}
    tokens = weighed([math.exp(gap) for gap in (0.1, 0.2, -3.0)])
    loss, told = policy_loss(tokens, "gpg", correction=[tables[name] for name in order])
    assert loss.item() == pytest.approx(weight, abs=1e-6)
    assert told["rejected_fraction"].item() == pytest.approx(1 / 3)


# ---------------------------------------------------------------------------------------------------------------- M2PO


def test_m2po_caps_strictly_below_the_budget_and_lets_what_is_on_it_be() -> None:
    both = tokens_of([0.25, 0.5])  # capped at 0.25, the mean square is 0.0625; as it is, 0.15625
    assert m2po_bounds(both, budget=0.0625).high.item() == 0
    assert m2po_bounds(both, budget=0.0626).high.item() == pytest.approx(math.exp(0.25) - 1)
    assert m2po_bounds(both, budget=0.15625).high.item() == pytest.approx(math.exp(20) - 1)


@pytest.mark.parametrize(
    ("variant", "deltas", "reach"), [("cap_exact", [1.0], 0.2), ("cap", [0.199999999, 1.0], 0.199999999)]
)
def test_m2po_takes_its_budget_in_double_precision(variant: str, deltas: list[float], reach: float) -> None:
    """In single precision 0.04 is 0.039999999106, of which the root is 0.19999999776."""
    bounds = m2po_bounds(tokens_of(deltas), variant=variant, budget=0.04)
    assert torch.log1p(bounds.high).item() == pytest.approx(reach, abs=1e-12)


@pytest.mark.parametrize(("variant", "dtype"), [("cap", torch.float32), ("cap_suffix", torch.float64)])
def test_the_token_that_sets_the_bound_keeps_its_gradient(variant: str, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    behaviour = -torch.rand(200, dtype=dtype) * 5
    logprobs = (behaviour + torch.rand(200, dtype=dtype)).requires_grad_()
    tokens = TrainedTokens(logprobs, behaviour, torch.ones(200, dtype=dtype), torch.arange(200) // 7)
    for budget in torch.linspace(0.01, 0.3, 30).tolist():
        bounds = m2po_bounds(tokens, variant=variant, budget=budget)
        loss, _ = policy_loss(tokens, "m2po", variant=variant, budget=budget)
        (slope,) = torch.autograd.grad(loss, logprobs)
        delta = (logprobs - behaviour).detach().double()
        reach = torch.log1p(bounds.high)
        assert (slope != 0).tolist() == (delta <= reach).tolist()
        assert ((delta - reach).abs() < 2e-6).any()


# ------------------------------------------------------------------------------------------------------ whole sequences


# -------------------------------------------------------------------------------------------------- gates and weights


def test_dppo_pulls_back_a_token_however_far_it_has_gone() -> None:
    """The ratio is held to e^-20; the squared log ratio, which needs no bound to stay finite, is not."""
    logprobs = vector([-60.0]).requires_grad_()
    terms, _, _ = dppo(TrainedTokens(logprobs, vector([-0.1]), vector([-1.0]), torch.tensor([0])))
    (slope,) = torch.autograd.grad(terms.sum(), logprobs)
    assert terms.item() == pytest.approx(3.58801)
    assert slope.item() == pytest.approx(-0.1198)


@pytest.mark.parametrize(
    ("name", "options", "value"),
    [
        ("ppo", {"dual_clip": None}, 5.0),
        ("decoupled_ppo", {"behaviour_upper": None}, 5.0),
        ("cispo", {"clip_low": None}, 5 * (math.log(5) - 1)),
    ],
)
def test_none_takes_a_bound_away(name: str, options: dict[str, Any], value: float) -> None:
    gap = math.log(5.0)
    tokens = tokens_of([gap], [-1.0], proximal=vector([gap - 1]))
    assert policy_loss(tokens, name, **options)[0].item() == pytest.approx(value)


# --------------------------------------------------------------------------------------------------- KL in the reward


def test_costs_add_up_from_a_token_to_the_end_of_its_sequence() -> None:
    assert cost_to_go(vector([1, 2, 3, 10, 20]), torch.tensor([0, 0, 0, 1, 1])).tolist() == [6, 5, 3, 30, 20]
    assert cost_to_go(vector([]), torch.zeros(0, dtype=torch.int64)).tolist() == []


def test_kl_in_the_reward_lowers_advantages_without_a_gradient_of_its_own() -> None:
    reference = vector([-1.1, -1.3])  # behaviour is -1: k1 = 0.1, 0.3
    tokens = tokens_of([0.0, 0.0], [1, 1], reference=reference)
    loss, told = policy_loss(tokens, "gpg", kl={"use": "k1", "weight": 0.5, "place": "reward"})
    (slope,) = torch.autograd.grad(loss, tokens.logprobs)
    assert slope.tolist() == pytest.approx([-(1 - 0.5 * 0.4) / 2, -(1 - 0.5 * 0.3) / 2])
    assert told["reference_kl"].item() == pytest.approx(0.2)


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ({"use": "m2po", "variant": "cup"}, "variant must be one of cap, cap_exact, cap_suffix, mask"),
        ({"use": "m2po", "floor_low": 1.0}, "floor_low"),
        ({"use": "gspo", "form": "word"}, "form must be sequence or token"),
        ({"use": "gmpo", "clip_low": -1}, "clip_low and clip_high must be at least 0"),
        ({"use": "cispo", "clip_low": 2}, "clip_low from 0 to 1"),
        ({"use": "sapo", "tau_negative": 0}, "tau_positive and tau_negative must be above 0"),
        ({"use": "dppo", "variant": "tv"}, "variant must be dppo or ipo"),
        ({"use": "dppo", "kl_tau": math.inf}, "adv_tau and kl_tau must be finite and at least 0, got 1.0 and inf"),
        ({"entropy": math.inf}, "trainer.entropy: the weight must be finite, got inf"),
        ({"use": "decoupled_ppo", "proximal": "guessed"}, "forward or interpolated"),
        (
            {"use": "decoupled_ppo", "behaviour_metric": "k3", "behaviour_action": "clamp"},
            'needs behaviour_metric = "ratio", got "k3"',
        ),
        ({"use": "decoupled_ppo", "behaviour_upper": -1.0}, "behaviour_upper must be above 0, as every ratio is"),
        ({"correction": {"use": "veto", "high": 3}}, "no option 'high'; the options are low"),
        ({"kl": {"place": "reward", "unbiased": True}}, "unbiased has no meaning"),
    ],
)
def test_what_cannot_be_is_said(call: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        policy_loss(tokens_of([0.0]), **call)


def test_the_lack_of_a_proximal_policy_is_said() -> None:
    with pytest.raises(UsageError, match=r"needs TrainedTokens\.proximal, and it is None"):
        policy_loss(tokens_of([0.0]), "decoupled_ppo")
    with pytest.raises(UsageError, match='proximal = "interpolated" needs'):
        policy_loss(tokens_of([0.0]), "decoupled_ppo", proximal="interpolated")
