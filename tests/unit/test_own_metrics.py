"""Metrics of a loss of one's own are told apart from all that is shipped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle, product
from pathlib import Path
from typing import Any

import torch
from tiny_models import SHAPE, TOKENIZER, batch

from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import TrainerSettings
from headrace.ops.lineage.own_metrics import SHIPPED, select_own_metrics
from headrace.trainers.learner.learner import Learner
from headrace.trainers.learner.model import build_model
from headrace.trainers.losses import CORRECTIONS, LOSSES, TrainedTokens, add_metrics, means, objective_of

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"variant": "mask"},
    {"proximal": "interpolated"},
    {"behaviour_action": "mask", "behaviour_level": "sequence"},
)


def objectives() -> Iterator[Any]:
    """Of each loss with each correction: its options and where the KL goes come in turn."""
    turns = cycle(product(({"place": "loss"}, {"place": "reward"}, None), OPTIONS))
    for (loss, correction), (kl, options) in zip(product(LOSSES, (None, *CORRECTIONS)), turns, strict=False):
        with suppress(UsageError):  # these do not go together
            yield objective_of({"use": loss, **options}, correction=correction, kl=kl, entropy=0.1)


def some_tokens() -> TrainedTokens:
    zeros, numbers = torch.zeros(4), torch.zeros(4, dtype=torch.int64)
    return TrainedTokens(
        zeros, zeros, zeros, numbers, proximal=zeros, reference=zeros, entropies=zeros, versions=numbers, version=0
    )


def test_no_metric_of_a_shipped_loss_or_of_a_step_is_taken_for_an_own_one() -> None:
    names: dict[str, float] = {}
    for objective in objectives():
        tokens = some_tokens()
        bounds = objective.bounds(tokens)
        _, sums = objective.compute_loss_share(tokens, objective.totals(tokens, None, bounds), bounds)
        names |= dict.fromkeys((*sums, *means(add_metrics(sums, sums))), 0.0)
    assert len(names) > 20
    for settings in (TrainerSettings(), TrainerSettings(entropy=0.1, kl={"use": "k3"})):
        names |= Learner(build_model(SHAPE, TOKENIZER, seed=1), settings).step(batch(1), 1)
    assert select_own_metrics({**names, "reward_part_its\nname": 1.0}) == {}
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    listed = {name for row in re.findall(r"^\| (`.+?) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)}
    passing = {"ess_ratio", "ess_square"}
    assert {name for name in listed if not re.search("[A-Z]|^weight_|^staleness_", name)} == SHIPPED - passing
    assert {name for name in names if name.startswith("weight_") and name != "weight_square_mean"} <= listed
    assert select_own_metrics({**names, "mine": 2.0, "also_mine": 1.0}) == {"also_mine": 1.0, "mine": 2.0}
