import pytest
import torch

from headrace.trainers.losses import load_balance, value_loss


def test_experts_that_are_used_unevenly_cost_more() -> None:
    shares = torch.tensor([0.5, 0.25, 0.25, 0.0])
    assert load_balance(shares, torch.tensor([0.4, 0.3, 0.2, 0.1])).item() == pytest.approx(1.3)
    assert load_balance(torch.full((4,), 0.25), torch.full((4,), 0.25)).item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("value", "target", "loss", "slope"),
    [
        (1.3, 2.0, 0.7**2 / 2, -0.7),  # within the clip
        (2.0, 2.0, 0.5**2 / 2, 0.0),  # went further than the clip towards the target: no gradient
        (0.0, 2.0, 2.0**2 / 2, -2.0),  # went away from it
    ],
)
def test_a_critic_is_clipped_only_on_its_way_to_the_target(
    value: float, target: float, loss: float, slope: float
) -> None:
    values = torch.tensor([value], requires_grad=True)
    found = value_loss(values, torch.tensor([target]), torch.tensor([1.0]))
    torch.autograd.backward(found.sum())
    assert found.item() == pytest.approx(loss)
    assert values.grad is not None
    assert values.grad.item() == pytest.approx(slope)
