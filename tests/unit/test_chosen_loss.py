"""The objective that a recipe names; and the page of the losses, which must be true."""

from __future__ import annotations

import inspect
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import TrainerSettings
from headrace.trainers.learner.chosen_loss import load_objective
from headrace.trainers.losses import CORRECTIONS, LOSSES, TrainedTokens, totals_of

PAGE = (Path(__file__).parents[2] / "docs" / "losses.md").read_text()


def trainer(**table: Any) -> TrainerSettings:
    return TrainerSettings.model_validate(table)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"loss": "m2p"}, r"^trainer\.loss: 'm2p' is not known; take one of m2po"),
        ({"loss": {"use": "m2po", "budgt": 1}}, "no option 'budgt'; the options are budget"),
        ({"loss": {"use": "ppo", "clip_low": 2}}, "^trainer.loss: clip_low must be from 0 to 1"),
        ({"aggregation": "constant"}, "'length' is missing"),
        ({"correction": ["tsi"]}, "correction: 'tsi' is not known; take one of tis"),
        ({"correction": ["tis"], "loss": "decoupled_ppo"}, "take `rejection` or `veto`, which only reject tokens"),
        ({"correction": ["tis", "mis"]}, "only one correction may weigh tokens, got 2"),
        ({"loss": {"use": "m2po", "variant": "mask", "floor_low": 0.1}}, "floor_low and floor_high have no effect"),
        ({"loss": {"use": "ppo", "clip_low": "a"}}, r"^trainer\.loss, ppo: clip_low must be a number, got 'a'$"),
        ({"kl": {"use": "k3", "place": "reward"}, "batch_norm": True}, "cannot be combined with trainer.batch_norm"),
        ({"reference": {"decay": 0.9}}, "no effect, because nothing uses the reference policy"),
        ({"final_share": 0.5}, 'no effect with trainer.schedule = "constant"'),
        ({"count_rejected": True}, "neither trainer.loss nor trainer.correction rejects"),
        ({"kl": {"use": "headrace.trainers.losses.divergence:k1"}}, "k1' is not known; take one of k1, k2, k3"),
    ],
)
def test_what_a_recipe_may_not_ask_for_is_said_with_what_it_may(table: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_objective(trainer(**table))


def torn(_tokens: TrainedTokens) -> object:
    return {}["loss"]


def test_a_loss_of_your_own_that_raises_is_refused_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    name_losses(monkeypatch, torn)
    with pytest.raises(
        UsageError, match=r"^trainer\.loss failed .*: KeyError: 'loss' at test_chosen_loss\.py:[0-9]+ in torn$"
    ):
        load_objective(trainer(loss="my_losses:torn"))


def halved_in_place(tokens: TrainedTokens) -> torch.Tensor:
    scaled = tokens.advantages
    scaled *= 0.5
    return -scaled * tokens.logprobs


def clamped_where_large(tokens: TrainedTokens) -> torch.Tensor:
    if tokens.behaviour_logprobs.max() > 0.1:
        tokens.behaviour_logprobs.clamp_(max=0.1)
    return -tokens.advantages * tokens.logprobs


def detached(tokens: TrainedTokens) -> torch.Tensor:
    return -tokens.advantages * tokens.logprobs.detach()


def kept_near(tokens: TrainedTokens) -> torch.Tensor:
    assert tokens.reference is not None
    return (tokens.logprobs - tokens.reference).square() - tokens.advantages * tokens.logprobs


def name_losses(monkeypatch: pytest.MonkeyPatch, *losses: Callable[[TrainedTokens], object]) -> None:
    module = ModuleType("my_losses")
    module.__dict__.update({loss.__name__: loss for loss in losses})
    monkeypatch.setitem(sys.modules, "my_losses", module)


def test_a_loss_of_your_own_that_changes_its_numbers_in_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    name_losses(monkeypatch, halved_in_place, clamped_where_large)
    with pytest.raises(UsageError, match=r"changes TrainedTokens\.advantages in place"):
        load_objective(trainer(loss="my_losses:halved_in_place"))
    objective = load_objective(trainer(loss="my_losses:clamped_where_large"))
    ones = torch.ones(2)
    tokens = TrainedTokens(ones * 0.5, ones * 0.5, ones, torch.tensor([0, 1]))
    with pytest.raises(UsageError, match=r"changes TrainedTokens\.behaviour_logprobs in place"):
        objective.compute_loss_share(tokens, totals_of(tokens.sequences))


def test_the_reference_policy_can_be_set_for_a_loss_of_your_own_that_may_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name_losses(monkeypatch, kept_near)
    assert "reference" in load_objective(trainer(loss="my_losses:kept_near", reference={"decay": 0.9})).needs


def test_a_loss_of_your_own_without_a_gradient_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    name_losses(monkeypatch, detached)
    with pytest.raises(UsageError, match="the loss has no gradient: compute it from"):
        load_objective(trainer(loss="my_losses:detached"))


def test_the_table_on_the_page_of_losses_is_a_trainers() -> None:
    table = tomllib.loads(PAGE.partition("```toml\n")[2].partition("```")[0])["trainer"]
    objective = load_objective(trainer(**table))
    assert objective.kl is not None
    assert {key for key in table if table[key] == getattr(trainer(), key)} >= {"count_rejected", "entropy", "schedule"}


def test_the_page_lists_every_loss_with_its_parameters_and_every_correction() -> None:
    rows = {row[1].strip(" `"): row[3] for line in PAGE.splitlines() if len(row := line.split("|")) == 6}
    assert rows.keys() - {"use", "---"} == LOSSES.keys()
    for name, function in LOSSES.items():
        own = inspect.signature(function).parameters.keys() - {"tokens", "bounds"}
        assert all(f"`{one}`" in rows[name] for one in own), name
    assert all(f"`{name}`" in PAGE for name in CORRECTIONS)


def test_the_code_on_the_page_works(monkeypatch: pytest.MonkeyPatch) -> None:
    called, _, rest = PAGE.partition("```python\n")[2].partition("```")
    found: dict[str, Any] = {}
    exec(called, found)  # noqa: S102 - ours
    assert torch.isfinite(found["loss"])
    module = ModuleType("my_page")
    exec(rest.partition("```python\n")[2].partition("```")[0], module.__dict__)  # noqa: S102 - ours
    monkeypatch.setitem(sys.modules, "my_page", module)
    objective = load_objective(trainer(loss={"use": "my_page:squared", "scale": 3.0}))
    ones = torch.ones(2)
    tokens = TrainedTokens(ones * 0.5, ones * 0.5, ones, torch.tensor([0, 1]))
    assert objective.compute_loss_share(tokens, totals_of(tokens.sequences))[0].item() == pytest.approx(-1.0)
