"""LoRA: trains only an adapter of a policy. Defines its frozen weights, its masters, and its versions.

A version is either the adapter, and engine and trainer compute W x + s B A x as peft does; or whole weights, in which
the rounded W + s B A replaces W. In the second case the trainer computes with the rounded weights too, and ignores
rounding in the backward pass, as for masters. In both cases engine and trainer evaluate the same function.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
import transformers

from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Lora, Recipe
from headrace.infra.store.object_store import Content
from headrace.infra.weights.experts import split_by_files
from headrace.infra.weights.files import ADAPTER_CONFIG
from headrace.infra.weights.folder import files_of, open_weights
from headrace.infra.weights.lora import ADAPTER, add_adapter, base_name, build_adapter_config
from headrace.infra.weights.tensors import Tensor, hash_weights
from headrace.trainers.learner.layers import decoder_of
from headrace.trainers.learner.model import ModelError, config_of, empty_model, round_to_bf16, to_torch
from headrace.trainers.learner.tensor_shapes import describe_wrong_shape


class Adapter:
    """An adapter on a model. It changes the model in place: the base is rounded to bf16 and frozen.

    Args:
        model: In fp32, on the CPU.
        settings: Settings of the adapter.
        seed: Seed for A; B is zero, so version 0 is the base.

    Raises ModelError for a target that the model does not have.
    """

    def __init__(self, model: transformers.PreTrainedModel, settings: Lora, seed: int) -> None:
        targets = _find_targets(model, settings.targets)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.to(torch.bfloat16))
        self.settings, self.seed = settings, seed
        self._model, self.is_merged = model, settings.publish == "merged"
        self._config = build_adapter_config(settings.rank, settings.alpha, targets)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            add_adapter(model, self._config)
        self._layers = {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}
        if self.is_merged:
            for layer in self._layers.values():
                layer.forward = partial(_forward_with_adapter, layer)

    def merge(self, into: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """Return a version's whole weights as bf16; `into` as for `round_to_bf16`. Frozen weights are not copied."""
        merged: dict[str, Tensor] = {}
        with torch.no_grad():
            for name, layer in self._layers.items():
                merged |= round_to_bf16({f"{name}.weight": _merged_weight(layer)}, into)
        return {**self._frozen, **merged}

    def files(self) -> dict[str, Content]:
        """Return the files beside a version's anchor, by name: the base and the adapter's config."""
        tensors = self._base()
        base: dict[str, Content] = dict(files_of(tensors, hash_weights(tensors)))
        return base if self.is_merged else {**base, ADAPTER_CONFIG: json.dumps(self._config, indent=2).encode()}

    @cached_property
    def _frozen(self) -> dict[str, Tensor]:
        """Weights that are equal in all versions; the same objects each time, so a delta need not compare them."""
        merged = {f"{name}.weight" for name in self._layers}
        return {name: tensor for name, tensor in self._base().items() if name not in merged}

    def _base(self) -> dict[str, Tensor]:
        base = {base_name(in_model): parameter for in_model, parameter in self._model.named_parameters()}
        return round_to_bf16({name: parameter for name, parameter in base.items() if name is not None})


def load_base(model: transformers.PreTrainedModel, folder: Path) -> None:
    """Load a folder's weights into a model. Raises WeightsError if there are none, ModelError if they do not fit."""
    tensors = open_weights(folder).tensors
    with torch.no_grad():
        parameters = split_by_files(dict(model.named_parameters()))
        found = {name: tensor.shape for name, tensor in tensors.items()}
        if misfit := describe_wrong_shape(found, {name: tuple(one.shape) for name, one in parameters.items()}):
            raise ModelError(f"the base weights do not fit the config that was published with them: {misfit}")
        for name, parameter in parameters.items():
            parameter.copy_(to_torch(tensors[name]))


def check_targets(recipe: Recipe, policy: str) -> None:
    """Raise UsageError for a target that a policy's model lacks; the model is built without memory for weights."""
    settings = recipe.policies[policy]
    try:
        with torch.device("meta"):
            model = empty_model(config_of(settings))
        _find_targets(model, settings.lora.targets if settings.lora else ())
    except UsageError as error:
        raise UsageError(f"policies.{policy}: {error}") from error


def _find_targets(model: transformers.PreTrainedModel, targets: tuple[str, ...]) -> list[str]:
    """Return the layers to adapt, by the ends of their names; without targets, all linear layers except the head."""
    linear = [name for name, module in _modules(model) if isinstance(module, torch.nn.Linear)]
    if not linear:
        raise ModelError(
            f"models of type {model.config.model_type} have no linear layers that can take an adapter: leave `lora` out"
        )
    ends = sorted({name.rpartition(".")[2] for name in linear})
    for target in targets:
        if not any(f".{name}".endswith(f".{target}") for name in linear):
            near = ", ".join(difflib.get_close_matches(target, ends, n=1)) or ", ".join(ends)
            raise ModelError(
                f"lora.targets names {target!r}, which is not a linear layer of the {model.config.model_type} model; "
                f"did you mean {near}?"
            )
    return list(targets) or ends


def _modules(model: transformers.PreTrainedModel) -> Iterator[tuple[str, torch.nn.Module]]:
    inside = {id(module) for module in decoder_of(model).modules()}
    return ((name, module) for name, module in model.named_modules() if id(module) in inside)


def _merged_weight(layer: Any) -> torch.Tensor:
    adapter = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
    merged: torch.Tensor = _Merged.apply(layer.base_layer.weight, *adapter, layer.scaling[ADAPTER])
    return merged


def _forward_with_adapter(layer: Any, states: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(states, _merged_weight(layer), layer.base_layer.bias)


class _Merged(torch.autograd.Function):
    """W + s B A, float[out, in] with bf16 values, of W float[out, in], A float[r, in], B float[out, r]."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        ctx.scale = scale
        return weight.float().addmm(b.float(), a.float(), alpha=scale).to(torch.bfloat16).to(weight.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        a, b = ctx.saved_tensors
        gradient = gradients[0].float() * ctx.scale
        return None, (b.float().T @ gradient).to(a.dtype), (gradient @ a.float().T).to(b.dtype), None
