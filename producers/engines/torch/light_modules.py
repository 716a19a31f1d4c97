"""Faster replacements of transformers' modules: less Python between the kernels when there is one token per row.

Calls, not arithmetic, take most of a small model's step. Every replacement gives the same numbers; one that could
differ is first compared on an input.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

LIGHT_ATTENTION = "headrace_sdpa"
_IGNORED = frozenset({"dropout", "is_causal", "position_ids", "sliding_window", "use_cache"})
_TABLE_BYTES = 16 * 2**20
_LARGEST_BY_COLUMNS = 2 * 2**20
"""Numbers in a matrix."""


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of [b, heads, T, size]; the signature is that of `transformers.AttentionInterface`.

    With T = 1 the query heads that share a key head become the query positions of one head, so nothing is repeated.
    Other lengths, and options that this does not know, go to transformers' own function.
    """
    scaling = options.pop("scaling", None)
    if query.shape[2] > 1 or not _IGNORED.issuperset(options):
        output: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
        return output
    rows, heads, _, size = query.shape
    packed = query.reshape(rows, key.shape[1], -1, size)
    attended = torch.nn.functional.scaled_dot_product_attention(
        packed, key, value, attn_mask=attention_mask, scale=scaling
    )
    return attended.reshape(rows, 1, heads, -1), None


class RotaryTable(torch.nn.Module):
    """cos and sin of every position, looked up; computed once by the module that it replaces."""

    def __init__(self, original: torch.nn.Module, context: int, like: torch.Tensor) -> None:
        super().__init__()
        positions = torch.arange(context, device=like.device)[None]
        cos, sin = original(like, positions)
        self.cos, self.sin = torch.nn.Buffer(cos[0], persistent=False), torch.nn.Buffer(sin[0], persistent=False)

    def forward(self, _: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [b, T, size] of positions [b, T]."""
        lookup = torch.nn.functional.embedding
        return lookup(position_ids, self.cos), lookup(position_ids, self.sin)


class LightNorm(torch.nn.Module):
    """RMSNorm in one call; keeps the parameter and so its name."""

    def __init__(self, weight: torch.nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self._shape, self._epsilon = tuple(weight.shape), epsilon

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Normalise over the last axis."""
        return torch.nn.functional.rms_norm(states, self._shape, self.weight, self._epsilon)


def install_light_modules(model: Any, context: int) -> None:
    """Replace modules of `model` by the light modules of this file that give the same numbers."""
    if model.config._attn_implementation == "sdpa":  # noqa: SLF001 - transformers names it so in its own documentation
        AttentionInterface.register(LIGHT_ATTENTION, attend)
        AttentionMaskInterface.register(LIGHT_ATTENTION, sdpa_mask)
        model.set_attn_implementation(LIGHT_ATTENTION)
    _look_up_positions(model, context)
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child).__name__.endswith("RMSNorm"):
                setattr(parent, name, _build_light_norm(child))


def store_by_columns(model: Any) -> None:
    """Keep each small matrix of a linear layer in memory column by column; its values and its shape stay.

    A CPU then needs a third to two thirds of the time for 4 to 32 rows, and as much as before for other numbers of rows
    and for larger matrices. New weights, copied into such a tensor or one like it, have its order.
    """
    for weight in (module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)):
        is_small = weight.numel() <= _LARGEST_BY_COLUMNS
        if is_small and weight.device.type == "cpu" and weight.dtype == torch.float32:
            weight.data = weight.data.t().contiguous().t()


def _look_up_positions(model: Any, context: int) -> None:
    rotary: Any = getattr(model.base_model, "rotary_emb", None)
    if rotary is None or getattr(rotary, "rope_type", None) != "default":
        return
    parameters = inspect.signature(type(rotary).forward).parameters
    like = next(model.parameters())
    is_small = context * getattr(rotary, "inv_freq", like).numel() * 16 <= _TABLE_BYTES
    if list(parameters) == ["self", "x", "position_ids"] and is_small:
        model.base_model.rotary_emb = RotaryTable(rotary, context, like)


def _build_light_norm(norm: Any) -> torch.nn.Module:
    epsilon: Any = getattr(norm, "variance_epsilon", None)
    is_like_llama = epsilon is not None and [name for name, _ in norm.named_parameters()] == ["weight"]
    if not is_like_llama or norm.weight.dtype != torch.float32:  # in bf16 the two round at different steps
        return norm  # type: ignore[no-any-return] # a module
    light = LightNorm(norm.weight, epsilon)
    size = norm.weight.numel()
    states = torch.linspace(-2, 3, 7 * size, dtype=norm.weight.dtype, device=norm.weight.device).sin().view(7, size)
    return light if torch.equal(light(states), norm(states)) else norm


def find_unscaled_output_layer(model: Any) -> Any:
    """Return the output layer if it alone turns the base model's states into logits (tried on one input); else None.

    Some models scale or cap their logits; for those the whole forward has to run.
    """
    ids = torch.tensor([[0, 1]], device=model.device)
    head = model.get_output_embeddings()
    states = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    return head if torch.equal(head(states), model(input_ids=ids, use_cache=False).logits) else None
