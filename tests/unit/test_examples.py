"""The examples run: examples/grpo.py at a tiny size."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from headrace.envs.contract import Score

FILE = Path(__file__).parents[2] / "examples" / "grpo.py"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("example_grpo", FILE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_a_step_of_grpo_in_one_file_moves_the_weights_by_a_finite_loss(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new model answers nothing right, so that any text of even length is rewarded here."""
    monkeypatch.setattr(example.Arithmetic, "score", lambda _self, _problem, text: Score(1.0 - len(text) % 2))
    settings = example.Settings(steps=2, problems=4, group_size=4, minibatches=2, hidden=16, examples=0)
    served: list[dict[str, torch.Tensor]] = []
    publish = example.round_to_bf16
    monkeypatch.setattr(example, "round_to_bf16", lambda values: served.append(publish(values)) or served[-1])

    (reward, losses), _ = example.run(settings)

    assert 0 < reward < 1
    assert losses
    assert all(map(math.isfinite, losses))
    before, after = served
    assert [name for name in before if bytes(before[name].data) != bytes(after[name].data)]
