"""Names and shapes of a model's parameters, without their memory, to check weights before a server reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from headrace.infra.weights.experts import ExpertLayers, split_by_files
from headrace.infra.weights.files import ADAPTER_CONFIG
from headrace.infra.weights.lora import add_adapter, map_published_names
from headrace.infra.weights.tensors import Tensor
from headrace.producers.engines.contract import EngineError
from headrace.producers.engines.torch.causal_lm import convert_to_tensor, describe_not_finite, describe_wrong_names


class ModelShapes:
    """The parameters of one model, named as in Hugging Face files, or of its adapter, named as in peft's files.

    Args:
        folder: Holds its `config.json`, and `adapter_config.json` where an adapter alone is served.
    """

    def __init__(self, folder: Path) -> None:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
            if (adapter := folder / ADAPTER_CONFIG).exists():
                add_adapter(model, json.loads(adapter.read_text()))
        text = config.get_text_config()
        self.vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self.context = int(text.max_position_embeddings)
        self.experts = ExpertLayers.of(model)
        """None for a model without experts."""
        parameters = dict(model.named_parameters(remove_duplicate=False))
        parameters |= {name: buffer for name, buffer in model.state_dict().items() if name not in parameters}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._tied: dict[str, int] = {}
        """Name to the parameter that it is tied to: weights need only one name of tied parameters."""
        for name, in_model in map_published_names(model.state_dict()).items():
            for part, tensor in split_by_files({name: parameters[in_model]}).items():
                self._shapes[part] = tuple(tensor.shape)
                self._tied[part] = id(parameters[in_model]) if tensor is parameters[in_model] else id(part)

    def add_tied_names(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights that fit the model, with tied parameters under each of their names."""
        given = {self._tied[name]: tensor for name, tensor in weights.items()}
        return {name: weights.get(name, given[key]) for name, key in self._tied.items()}

    def check(self, weights: Mapping[str, Tensor]) -> None:
        """Raise EngineError for weights that do not fit the model, or hold numbers that are not finite."""
        given = {self._tied[name] for name in weights if name in self._tied}
        unknown = sorted(weights.keys() - self._shapes.keys())
        missing = sorted(name for name, key in self._tied.items() if name not in weights and key not in given)
        if unknown or missing:
            raise EngineError(describe_wrong_names(missing, unknown))
        for name, tensor in weights.items():
            if tuple(tensor.shape) != self._shapes[name]:
                raise EngineError(
                    f"the tensor {name} must have shape {self._shapes[name]}, as in the model; it has "
                    f"{tuple(tensor.shape)}"
                )
            if not bool(torch.isfinite(convert_to_tensor(tensor)).all()):
                raise EngineError(describe_not_finite(name))
