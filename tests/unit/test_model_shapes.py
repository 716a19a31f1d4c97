"""Weights are checked against the model before a server reads them."""

from __future__ import annotations

import pytest
import torch
import transformers
from tiny_models import SMALLEST

from headrace.infra.weights.tensors import Tensor
from headrace.producers.engines.contract import EngineError
from headrace.producers.engines.served.model_shapes import ModelShapes


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> ModelShapes:
    folder = tmp_path_factory.mktemp("model")
    SMALLEST.save_pretrained(folder)
    return ModelShapes(folder)


def make_weights() -> dict[str, Tensor]:
    model = transformers.Qwen3ForCausalLM(SMALLEST)
    return {
        name: Tensor("F32", tuple(value.shape), memoryview(value.detach().numpy().tobytes()))
        for name, value in model.named_parameters()
    }


def test_the_weights_of_a_model_fit_it_with_its_tied_head_or_without(shapes: ModelShapes) -> None:
    weights = make_weights()
    shapes.check(weights)
    shapes.check(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    assert (shapes.vocabulary, shapes.context) == (8, 32)


def test_weights_that_would_take_a_server_down_are_refused(shapes: ModelShapes) -> None:
    weights = make_weights()
    name = "model.norm.weight"
    not_finite = Tensor("F32", (8,), memoryview(torch.tensor([1.0] * 7 + [float("nan")]).numpy().tobytes()))
    wrong = {
        r"missing: model.norm.weight\)": {key: value for key, value in weights.items() if key != name},
        r"\(unknown: other0, other1, other2, other3, other4 and 2 more\)": weights
        | {f"other{number}": weights[name] for number in range(7)},
        r"\(unknown: other\)": weights | {"other": weights[name]},
        r"norm.weight must have shape \(8,\), as in the model; it has \(4,\)": weights
        | {name: Tensor("F32", (4,), memoryview(bytes(16)))},
        "norm.weight holds NaN or infinite values": weights | {name: not_finite},
    }
    for why, given in wrong.items():
        with pytest.raises(EngineError, match=why):
            shapes.check(given)


def test_tied_parameters_can_be_written_under_each_of_their_names(shapes: ModelShapes) -> None:
    weights = make_weights()
    named = shapes.add_tied_names(weights)
    assert named.keys() - weights.keys() == {"lm_head.weight"}
    assert named["lm_head.weight"] is weights["model.embed_tokens.weight"]
    shapes.check(named)
