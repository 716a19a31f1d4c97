"""Stand-in for SGLang's compiled kernels: every name imports, and one that is not written here raises when called."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import torch

__version__ = "99.0.0"


def assign_req_to_token_pool_cpu(requests: Any, table: Any, starts: Any, ends: Any, slots: Any, width: Any) -> None:
    """Write the cache slots of new tokens into the table of requests."""
    first = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        count = end - start
        table[request, start:end] = slots[first : first + count].to(table.dtype)
        first += count


def topk_softmax(weights: torch.Tensor, ids: torch.Tensor, logits: torch.Tensor, renormalize: bool) -> None:
    """Write the best experts of tokens, and their weights, into tensors [tokens, experts per token]."""
    best = logits.float().softmax(-1).topk(ids.shape[1], -1)
    ids.copy_(best.indices)
    weights.copy_(best.values / best.values.sum(-1, keepdim=True) if renormalize else best.values)


class _Runtime:
    """Of CUDA: pinning memory that a GPU may read directly is none of a CPU's business."""

    def __getattr__(self, _name: str) -> Callable[..., int]:
        return lambda *_: 0


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*_: Any, **__: Any) -> None:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in without a GPU")

    return refuse


def _without_pinning(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Memory that a GPU may read directly cannot be had without one."""

    def made(*words: Any, pin_memory: bool = False, **named: Any) -> torch.Tensor:
        return make(*words, **named)

    return made


for _name in ("arange", "empty", "tensor", "zeros"):
    setattr(torch, _name, _without_pinning(getattr(torch, _name)))
torch.cuda.cudart = _Runtime
# SGLang's module for experts names it without an import where there is neither a GPU nor AMX.
builtins.topk_softmax = topk_softmax  # type: ignore[attr-defined]
torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign,assignment]
