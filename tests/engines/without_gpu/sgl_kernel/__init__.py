"""Stand-in for SGLang's compiled kernels: every name imports, and one that is not written here raises when called."""

from __future__ import annotations

from typing import Any

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
