import math

import pytest
import torch

from trainers.losses.clip import Clip, metric_sums, ppo_clip, token_mean
from trainers.losses.tokens import log_ratio


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "slope"),
    [(1, 1.5, -1.28, 0.0), (1, 0.5, -0.5, -0.5), (-1, 1.5, 1.5, 1.5), (-1, 0.5, 0.8, 0.0), (1, 1.0, -1.0, -1.0)],
)
def test_the_clipped_surrogate_and_its_gradient(advantage: float, ratio: float, loss: float, slope: float) -> None:
    delta = torch.tensor([math.log(ratio)], requires_grad=True)
    got = ppo_clip(delta, torch.tensor([float(advantage)]), Clip(0.2, 0.28))
    torch.autograd.backward(got.sum())
    assert got.item() == pytest.approx(loss, abs=1e-6)
    assert delta.grad is not None
    assert delta.grad.item() == pytest.approx(slope, abs=1e-6)


def test_an_extreme_ratio_stays_finite_and_moves_nothing() -> None:
    logprobs = torch.tensor([0.0, -500.0, -1.0], requires_grad=True)
    behaviour = torch.tensor([-500.0, 0.0, -1.0])
    delta = log_ratio(logprobs, behaviour)
    assert delta.tolist() == [20.0, -20.0, 0.0]
    torch.autograd.backward(ppo_clip(delta, torch.tensor([-1.0, 1.0, 1.0]), Clip()).sum())
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [0.0, 0.0, -1.0]


def test_a_token_without_advantage_gives_neither_loss_nor_gradient() -> None:
    logprobs = torch.tensor([300.0], requires_grad=True)
    loss = ppo_clip(log_ratio(logprobs, torch.zeros(1)), torch.zeros(1), Clip())
    torch.autograd.backward(loss.sum())
    assert loss.item() == 0
    assert logprobs.grad is not None
    assert logprobs.grad.item() == 0


def test_shares_of_the_token_mean_add_up_however_the_tokens_are_cut() -> None:
    losses = torch.tensor([1.0, 1, 2, 2, 2, 2, 2, 2])
    assert token_mean(losses, 8).item() == 1.75
    assert (token_mean(losses[:2], 8) + token_mean(losses[2:], 8)).item() == 1.75


def test_metrics_are_sums_over_tokens() -> None:
    ratios = torch.tensor([1.5, 0.5, 1.5, 0.5])
    sums = metric_sums(ratios.log(), torch.tensor([1.0, 1, -1, -1]), Clip(0.2, 0.28))
    assert sums["ratio_mean"].item() == pytest.approx(4.0)
    assert sums["clip_fraction"].item() == 2
    assert sums["kl_k1"].item() == pytest.approx(-2 * math.log(0.75))
    k3 = metric_sums(torch.tensor([-0.1]), torch.ones(1), Clip())["kl_k3"]
    assert k3.item() == pytest.approx(0.0048374, abs=1e-6)
