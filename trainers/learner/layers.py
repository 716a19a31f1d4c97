"""The layers of a model without its output layer: activation checkpointing and compilation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
import transformers
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from headrace.infra.errors import UsageError

_COMPILED = ("MLP", "RMSNorm", "LayerNorm")
_ForwardCall: TypeAlias = Callable[..., Any]


def decoder_of(model: transformers.PreTrainedModel) -> torch.nn.Module:
    """Return the module that turns ids into final states. Raises UsageError for a model that does not name it."""
    decoder: torch.nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    if decoder is model:
        raise UsageError(
            f"models of type {model.config.model_type} cannot be trained: transformers does not say which part of them "
            "comes before the output layer (get_decoder). Take a model of another type"
        )
    return decoder


def layers_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the stacked layers of a model; empty if transformers does not mark them."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def wrap_layers(model: transformers.PreTrainedModel, *, checkpointing: bool, compiled: bool) -> None:
    """Make every layer keep only its inputs for the backward pass, compile its norms and MLP, or both.

    transformers' own checkpointing works in training mode only, which would enable dropout. Attention is not compiled,
    because the layout of sequences changes with every micro-batch and would be recompiled. Raises UsageError if the
    model has no layers that support this.
    """
    layers = layers_of(model)
    _wrap(layers if checkpointing else [], layers, _recompute)
    of_layers = [module for layer in layers for module in layer.modules()]
    parts = [module for module in of_layers if type(module).__name__.endswith(_COMPILED)]
    _wrap(parts if compiled else [], parts, _compile)
    for name, wanted, found in (
        ("activation_checkpointing", checkpointing, layers),
        ("compile", compiled, parts),
    ):
        if wanted and not found:
            raise UsageError(
                f"{model.config.model_type} has no layers that trainer.{name} supports: set trainer.{name} to false"
            )


def _wrap(
    chosen: Sequence[torch.nn.Module],
    candidates: Sequence[torch.nn.Module],
    wrap: Callable[[_ForwardCall], _ForwardCall],
) -> None:
    for module in candidates:
        module.__dict__.pop("forward", None)
    for module in chosen:
        module.forward = wrap(module.forward)


def _recompute(forward: _ForwardCall) -> _ForwardCall:
    return partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)


def _compile(forward: _ForwardCall) -> _ForwardCall:
    return torch.compile(forward, dynamic=True)
