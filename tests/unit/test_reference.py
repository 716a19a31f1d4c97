from contextlib import suppress
from typing import Any

import pytest
import torch

from headrace.infra.recipe.settings import Reference, TrainerSettings
from headrace.trainers.learner.masters import Masters
from headrace.trainers.learner.reference import ReferencePolicy


def masters(value: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((2,), value)}


def follow(**settings: Any) -> list[float]:
    """The reference's value after versions 1 to 4, which are worth 1 to 4."""
    reference = ReferencePolicy(masters(0.0))
    seen = []
    for version in (1, 2, 3, 4):
        reference.follow(masters(float(version)), version, Reference(**settings))
        seen.append(float(reference.values["weight"][0]))
    return seen


def test_a_frozen_reference_stays_what_it_was() -> None:
    assert follow() == [0, 0, 0, 0]


def test_a_reference_is_refreshed_every_so_many_versions() -> None:
    assert follow(refresh_every=2) == [0, 2, 2, 4]


def test_an_average_keeps_its_share_at_every_version() -> None:
    assert follow(decay=0.5) == [0.5, 1.25, 2.125, 3.0625]


def test_a_model_computes_with_the_published_values_of_the_reference_for_a_while() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    policy = Masters({"weight": weight}, masters(3.0001), TrainerSettings())
    reference = ReferencePolicy(masters(1.0001))
    with suppress(RuntimeError), reference.stand_in_for(policy):
        assert weight.tolist() == [1.0, 1.0], "1.0001 is none in bf16"
        raise RuntimeError("on the way")
    assert weight.tolist() == [3.0, 3.0]
    assert reference.values["weight"].tolist() == pytest.approx([1.0001, 1.0001])
    assert policy.values["weight"].tolist() == pytest.approx([3.0001, 3.0001])
