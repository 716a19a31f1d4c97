"""A mixture of experts as transformers holds it, and as Hugging Face files hold it.

transformers keeps the experts of a layer in two tensors of three dimensions; files, and all engines that read them,
know a matrix per expert. Each of these is a contiguous slice of the former: on the way nothing is copied.

| in the model                                 | in files, of expert e                                             |
|----------------------------------------------|-------------------------------------------------------------------|
| `….mlp.experts.gate_up_proj` [E, 2 I, H]     | `….mlp.experts.e.gate_proj.weight`, `….e.up_proj.weight` [I, H]   |
| `….mlp.experts.down_proj` [E, H, I]          | `….mlp.experts.e.down_proj.weight` [H, I]                         |

The routing of tokens travels as ids of experts, [tokens, layers, experts per token] (`schemas.records.Routing`), where
the layers are those with experts, in the model's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
GATE_AND_UP, DOWN = ".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"
ROUTER = "TopKRouter"
"""How the classes of routers end in transformers."""


def split_by_files(named: Mapping[str, T]) -> dict[str, T]:
    """Return views of tensors by the names and in the shapes of Hugging Face files; most are the tensors themselves.

    Args:
        named: Tensors or arrays, by the model's own names.
    """
    found: dict[str, T] = {}
    for name, tensor in named.items():
        whole: Any = tensor
        found |= {part: whole[cut] for part, cut in _list_slices(name, whole.shape)} or {name: tensor}
    return found


def _list_slices(name: str, shape: Sequence[int]) -> Iterator[tuple[str, tuple[int, slice]]]:
    """Yield (name in files, its slice) for each part of an experts' tensor; nothing for any other."""
    parts: dict[str, slice] = {}
    if len(shape) == 3 and name.endswith(GATE_AND_UP):
        half = shape[1] // 2
        parts = {"gate_proj": slice(half), "up_proj": slice(half, None)}
    elif len(shape) == 3 and name.endswith(DOWN):
        parts = {"down_proj": slice(None)}
    prefix = name.rpartition(".")[0]
    for part, rows in parts.items():
        for expert in range(shape[0]):
            yield f"{prefix}.{expert}.{part}.weight", (expert, rows)


def routers_of(model: Any) -> list[Any]:
    """Return the routers of a transformers model, layer by layer: modules that give (logits, weights, expert ids)."""
    return [module for module in model.modules() if type(module).__name__.endswith(ROUTER)]


def compute_experts_plainly(model: Any) -> None:
    """On a CPU, take one expert after the other, as the model's own code does.

    Its sums have one order, that of the experts, and it takes half the time of transformers' grouped kernels there.
    """
    if routers_of(model) and model.device.type == "cpu":
        model.set_experts_implementation("eager")
