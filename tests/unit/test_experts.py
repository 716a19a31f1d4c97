"""Published weights of a mixture of experts are those of Hugging Face files."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import EXPERTS, SHAPE, TOKENIZER
from transformers.core_model_loading import revert_weight_conversion

from headrace.infra.weights.experts import split_by_files
from headrace.infra.weights.tensor_file import encode_safetensors
from headrace.producers.engines.contract import EngineError
from headrace.producers.engines.torch.causal_lm import CausalLM
from headrace.trainers.learner.model import ModelError, build_model, encode_model_files, round_to_bf16, to_torch

TINY: dict[str, Any] = {**EXPERTS, "num_experts": 4, "tie_word_embeddings": True}
OTHER_LAYOUT = {**SHAPE, "architecture": "mixtral", "num_local_experts": 4}


def tiny(**changed: Any) -> transformers.PreTrainedModel:
    return build_model({**TINY, **changed}, TOKENIZER, seed=1)


def test_every_expert_is_published_as_files_have_it() -> None:
    model = tiny()
    own = dict(model.named_parameters())
    theirs, ours = revert_weight_conversion(model, own), split_by_files(own)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert all(part.is_contiguous() for part in ours.values()), "a view, of which no copy is made"
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in ours
    assert "model.layers.1.mlp.up_proj.weight" in ours, "a layer without experts"


def test_a_published_folder_is_read_by_plain_transformers_and_by_the_engine(tmp_path: Path) -> None:
    model = tiny()
    published = round_to_bf16(dict(model.named_parameters()))
    again = round_to_bf16(
        dict(model.named_parameters()), round_to_bf16(dict(tiny(norm_topk_prob=False).named_parameters()))
    )
    assert again == published, "memory that is used again"
    for name, content in encode_model_files(model, TOKENIZER).items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "model.safetensors").write_bytes(encode_safetensors(published))
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    for (name, weight), expected in zip(read.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(weight, expected.to(torch.bfloat16)), name

    engine = CausalLM.build(read.config, "cpu", torch.float32)
    engine.apply(engine.stage(published))
    for (name, weight), expected in zip(engine.model.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(weight, expected.to(torch.bfloat16).float()), name
    published.pop("model.layers.2.mlp.experts.1.gate_proj.weight")
    with pytest.raises(EngineError, match=r"\(missing: model.layers.2.mlp.experts.1.gate_proj.weight\)"):
        engine.stage(published)
    with pytest.raises(EngineError, match=r"unknown: model.layers.0.mlp.experts.down_proj"):
        engine.stage({name: to_torch(tensor) for name, tensor in published.items()} | dict(model.named_parameters()))


def test_a_model_whose_files_hold_its_experts_otherwise_is_refused() -> None:
    with pytest.raises(
        ModelError, match="model type mixtral stores its experts in a layout that Headrace cannot publish"
    ):
        build_model(OTHER_LAYOUT, TOKENIZER, seed=1)
