"""Stand-in for SGLang's compiled kernels: every name imports, and one that is not written here raises when called."""

from __future__ import annotations

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
torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign,assignment]
