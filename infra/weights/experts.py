"""Mixtures of experts: their tensors in a transformers model, and in Hugging Face files.

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
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
GATE_AND_UP, DOWN = ".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"
ROUTER = "TopKRouter"
"""Endings of the names of transformers' router classes."""
NARROW = 256
"""Up to this number of experts, ids have one byte."""


@dataclass(frozen=True, slots=True)
class ExpertLayers:
    """Where a model has experts, and how many."""

    layers: tuple[int, ...]
    """Indices of the layers with experts."""
    all_layers: int
    """How many layers the model has."""
    experts: int
    """Experts of one layer."""
    per_token: int
    """Experts that compute a token in a layer."""

    @classmethod
    def of(cls, model: Any) -> ExpertLayers | None:
        """Return the expert layers of a transformers model; None for a model without experts."""
        routers = {name: module for name, module in model.named_modules() if _is_router(module)}
        if not routers:
            return None
        layers = tuple(int(name.partition(".layers.")[2].partition(".")[0]) for name in routers)
        first = next(iter(routers.values()))
        config = model.config.get_text_config()
        return cls(layers, int(config.num_hidden_layers), int(first.num_experts), int(first.top_k))

    @property
    def dtype(self) -> npt.DTypeLike:
        """Type of the expert ids in records."""
        return choose_id_type(self.experts)


def choose_id_type(experts: int) -> type[np.uint8 | np.uint16]:
    """Return the type of the ids of `experts` experts."""
    return np.uint8 if experts <= NARROW else np.uint16


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
    return [module for module in model.modules() if _is_router(module)]


def _is_router(module: Any) -> bool:
    return type(module).__name__.endswith(ROUTER)


def use_plain_experts(model: Any) -> None:
    """On a CPU, compute one expert after the other, as the model's own code does.

    Its sums always have the order of the experts, and on a CPU it takes half the time of transformers' grouped kernels.
    """
    if routers_of(model) and model.device.type == "cpu":
        model.set_experts_implementation("eager")
