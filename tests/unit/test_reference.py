from contextlib import suppress
from typing import Any

import pytest
import torch

from infra.settings import Reference
from trainers.reference import ReferencePolicy


def masters(value: float) -> dict[str, torch.Tensor]:
    return {"weight": torch.full((2,), value)}


def follow(**settings: Any) -> list[float]:
    """The reference's value after versions 1 to 4, which are worth 1 to 4."""
    reference = ReferencePolicy(masters(0.0), torch.device("cpu"))
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
    parameters = {"weight": torch.nn.Parameter(torch.tensor([1.0, 1.0]))}
    reference = ReferencePolicy(masters(1.0001), torch.device("cpu"))
    with suppress(RuntimeError), reference.in_place_of(parameters):
        assert parameters["weight"].tolist() == [1.0, 1.0]  # 1.0001 is none in bf16
        parameters["weight"].data.add_(1)
        raise RuntimeError("on the way")
    assert parameters["weight"].tolist() == [1.0, 1.0]
    assert reference.values["weight"].tolist() == pytest.approx([1.0001, 1.0001])
