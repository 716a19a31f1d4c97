from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from headrace.infra.errors import UsageError
from headrace.trainers.learner.layers import wrap_layers


def tiny() -> transformers.PreTrainedModel:
    config = transformers.Qwen3Config(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    return transformers.AutoModelForCausalLM.from_config(config)


def test_norms_and_mlps_are_compiled_and_layers_recomputed_until_it_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[str] = []

    def compile_(forward: Callable[..., Any], *, dynamic: bool) -> Callable[..., Any]:
        assert dynamic
        compiled.append(type(forward.__self__).__name__)
        return forward

    monkeypatch.setattr(torch, "compile", compile_)
    model, ids = tiny(), torch.tensor([[3, 4, 5]])
    before = model(ids).logits
    wrap_layers(model, checkpointing=True, compiled=True)
    assert sorted(compiled) == ["Qwen3MLP"] * 2 + ["Qwen3RMSNorm"] * 8
    assert all("forward" in layer.__dict__ for layer in model.model.layers)
    assert torch.equal(model(ids).logits, before)
    wrap_layers(model, checkpointing=False, compiled=False)
    assert not [module for module in model.modules() if "forward" in module.__dict__]


@pytest.mark.parametrize(
    ("wanted", "name"), [({"checkpointing": True}, "activation_checkpointing"), ({"compiled": True}, "compile")]
)
def test_a_model_without_layers_to_arrange_is_refused(wanted: dict[str, bool], name: str) -> None:
    model: Any = torch.nn.Linear(2, 2)
    model.config = SimpleNamespace(model_type="line")
    wrap_layers(model, checkpointing=False, compiled=False)
    with pytest.raises(UsageError, match=f"line has no layers that trainer.{name} supports"):
        wrap_layers(model, **{"checkpointing": False, "compiled": False, **wanted})
