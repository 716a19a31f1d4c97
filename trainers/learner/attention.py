"""Attention over packed sequences: causal within each sequence, none between sequences, without a T x T mask.

It is registered with transformers under its own name. Without a packing it is transformers' `sdpa`, including masks,
so a model that can be packed can also be padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from typing import Any

import torch
import transformers
from torch.nn.attention.varlen import varlen_attn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from headrace.infra.errors import UsageError
from headrace.trainers.learner.layers import decoder_of

PACKED_ATTENTION = "headrace_packed"
_KINDS = {"full_attention", "sliding_attention"}
_HARMLESS = {"is_causal", "position_ids", "use_cache", "cache_position", "output_attentions", "output_router_logits"}
_FLASH_DTYPES = {torch.bfloat16, torch.float16}
_PROBE = (5, 3)
_NEAR = 0.05
"""Tolerance relative to the largest value: bf16 errors are a tenth of it, attention across sequences ten times it."""


class PackingError(UsageError):
    """The sequences of this model cannot be packed; they must be padded."""


class Packing:
    """The layout of sequences in one row of T tokens."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        self.runs = [(length, len(list(same))) for length, same in groupby(lengths)]
        """(length, number of sequences) of each run of equal lengths; a run is computed like padded rows."""
        self.sizes = [length * rows for length, rows in self.runs]
        self.longest = max(lengths)
        self.boundaries = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
        """int32[S+1]"""
        self.windows: set[int] = set()
        """The sliding windows of the layers."""

    def inputs(self) -> dict[str, Any]:
        """Return the model's keyword arguments besides ids and positions.

        A mask of four dimensions keeps transformers from building one; nothing reads this mask.
        """
        return {"packing": self, "attention_mask": self.boundaries.new_ones((1, 1, 1, 1), dtype=torch.bool)}


def enable_packing(model: transformers.PreTrainedModel) -> None:
    """Make a model's layers use `attend`. Raises PackingError and leaves the model unchanged.

    A short forward pass must give the same states for a packed sequence as for the sequence alone.
    """
    config = model.config.get_text_config()
    strange = set(getattr(config, "layer_types", None) or ()) - _KINDS
    if strange:
        raise PackingError(
            f"{config.model_type} has layers that packing does not support: {', '.join(sorted(strange))}"
        )
    before = model.config._attn_implementation  # noqa: SLF001 - transformers names it so in its own documentation
    if before == PACKED_ATTENTION:
        return
    if before != "sdpa" or not model._supports_attention_backend:  # noqa: SLF001 - no public way to ask
        raise PackingError(
            f"{config.model_type} has its own attention code ({before}), which does not support packed sequences"
        )
    transformers.AttentionInterface.register(PACKED_ATTENTION, attend)
    AttentionMaskInterface.register(PACKED_ATTENTION, sdpa_mask)
    model.set_attn_implementation(PACKED_ATTENTION)
    try:
        _try_out(model, config)
    except Exception:
        model.set_attn_implementation(before)
        raise


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention float[b, T, heads, size] of float[b, heads, T, size], for `transformers.AttentionInterface`.

    Raises PackingError for an option that packed attention does not support.
    """
    packing: Packing | None = options.pop("packing", None)
    if packing is None:
        padded: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return padded
    window, scaling = options.pop("sliding_window", None), options.pop("scaling", None)
    dropout = options.pop("dropout", 0.0)
    strange = sorted(name for name in options.keys() - _HARMLESS if options[name] is not None)
    if attention_mask is not None and attention_mask.numel() > 1:
        strange.append("a mask of its own")
    if dropout:
        strange.append("dropout")
    if options.get("is_causal", getattr(module, "is_causal", True)) is False:
        strange.append("attention that is not causal")
    if strange:
        raise PackingError(
            f"{type(module).__name__} needs what packed attention does not support: {', '.join(strange)}"
        )
    if window is not None:
        packing.windows.add(window)
    size = query.shape[-1]
    if query.is_cuda and query.dtype in _FLASH_DTYPES and size == value.shape[-1] and size <= 256 and size % 8 == 0:
        return _attend_by_flash(query, key, value, packing, window, scaling), None
    return _attend_by_equal_lengths(module, (query, key, value), packing, window, scaling), None


def _attend_by_equal_lengths(
    module: torch.nn.Module,
    states: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    packing: Packing,
    window: int | None,
    scaling: float | None,
) -> torch.Tensor:
    """Attend with the kernel of padded rows, one run of equal lengths at a time."""
    # Slices are not used, because the gradient of each would be as long as the whole row.
    pieces = zip(packing.runs, *(torch.split(tensor[0], packing.sizes, 1) for tensor in states), strict=True)
    attended = []
    for (length, rows), *run in pieces:
        query, key, value = (piece.unflatten(1, (rows, length)).transpose(0, 1) for piece in run)
        mask = _window_mask(length, window, query.device) if window is not None and length > window else None
        output, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling)
        attended.append(output.flatten(0, 1))
    return torch.cat(attended)[None]


def _attend_by_flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: Packing,
    window: int | None,
    scaling: float | None,
) -> torch.Tensor:
    attended = varlen_attn(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        packing.boundaries,
        packing.boundaries,
        packing.longest,
        packing.longest,
        scale=scaling,
        window_size=(-1, 0) if window is None or window >= packing.longest else (window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    assert isinstance(attended, torch.Tensor)  # noqa: S101 - only the output was requested
    return attended[None]


def _window_mask(length: int, window: int, device: torch.device) -> torch.Tensor:
    """bool[1, 1, length, length], True where a query (third axis) sees a key."""
    positions = torch.arange(length, device=device)
    distance = positions[:, None] - positions
    return ((distance >= 0) & (distance < window))[None, None]


@torch.no_grad()
def _try_out(model: transformers.PreTrainedModel, config: transformers.PreTrainedConfig) -> None:
    first, second = _PROBE
    positions = torch.cat([torch.arange(length, device=model.device) for length in _PROBE])
    ids = (1 + 3 * torch.arange(first + second, device=model.device)) % config.vocab_size
    packing = Packing(_PROBE, model.device)
    base = decoder_of(model)
    try:
        packed = base(input_ids=ids[None], position_ids=positions[None], use_cache=False, **packing.inputs())
    except TypeError as error:
        raise PackingError(f"{config.model_type} cannot take packed sequences: {error}") from error
    alone = base(input_ids=ids[None, first:], use_cache=False).last_hidden_state[0].float()
    distance = float((packed.last_hidden_state[0, first:].float() - alone).abs().max())
    if not distance <= _NEAR * float(alone.abs().max()):
        raise PackingError(
            f"{config.model_type} computes different hidden states for a sequence when another sequence is packed "
            "before it"
        )
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or _KINDS
    if window and "sliding_attention" in kinds and window not in packing.windows:
        raise PackingError(f"{config.model_type} does not pass its sliding window to attention functions")
