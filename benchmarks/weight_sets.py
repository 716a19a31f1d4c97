"""Weights to measure with: made-up sets in the shape of a real model, in one stretch of memory, and their entropy.

The values of a made-up set are tiled from a pool of random ones, each from a random start: so 3.4 GB are there in
seconds. What changes, and by how much, is drawn anew for every value: repeats are what compressors find.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np
from numpy.typing import NDArray

from headrace.infra.weights.coding import Items, find_changes
from headrace.infra.weights.delta import items_of
from headrace.infra.weights.tensors import Tensor

Bits = NDArray[np.uint16]
"""uint16[n], the bit patterns of bf16 values."""
Shapes = Mapping[str, tuple[int, ...]]

CHUNK = 1 << 21
"""Items that are worked on at once, so that what measures takes next to no memory."""
POOL = 1 << 24
STEPS = np.repeat(np.array([1, -1, 2, -2], np.int16), [4, 4, 1, 1]).view(np.uint16)
"""By how many units in the last place a changed value moves, each of them with the same chance."""


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Tensors of bf16, one behind the other in name order."""

    items: Bits
    """uint16[n], of all tensors."""
    shapes: Shapes

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor as a view of the items."""
        found, at = {}, 0
        for name in sorted(self.shapes):
            count = prod(self.shapes[name])
            found[name] = Tensor("BF16", self.shapes[name], self.items[at : at + count].view(np.uint8).data)
            at += count
        return found

    def copy(self) -> PackedWeights:
        """Copy the items."""
        return PackedWeights(self.items.copy(), self.shapes)

    def is_equal_to(self, other: PackedWeights) -> bool:
        """Return whether every bit is the same."""
        return all(
            np.array_equal(self.items[at : at + CHUNK], other.items[at : at + CHUNK])
            for at in range(0, len(self.items), CHUNK)
        )


def pack_weights(named: Mapping[str, Tensor]) -> PackedWeights:
    """Copy tensors of bf16 into one stretch of memory."""
    shapes = {name: tensor.shape for name, tensor in named.items()}
    return PackedWeights(np.concatenate([items_of(named[name]) for name in sorted(named)]), shapes)


def qwen3_shapes(parameters: float) -> dict[str, tuple[int, ...]]:
    """Return Qwen3-1.7B's tensors, every width made smaller until so many parameters are left; 1.7e9 leaves all."""
    scale = min(1.0, sqrt(parameters / 1.7e9))
    hidden, inner, vocabulary = (max(8, round(size * scale / 8) * 8) for size in (2048, 6144, 151_936))
    heads, kv_heads = (max(8, round(count * 128 * scale / 8) * 8) for count in (16, 8))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(28):
        of_layer = {
            "input_layernorm": (hidden,),
            "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (heads, hidden),
            "self_attn.k_proj": (kv_heads, hidden),
            "self_attn.v_proj": (kv_heads, hidden),
            "self_attn.o_proj": (hidden, heads),
            "self_attn.q_norm": (128,),
            "self_attn.k_norm": (128,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    return shapes


def made(shapes: Shapes, seed: int = 0) -> PackedWeights:
    """Make weights of normal values with a deviation of 0.02, as a trained model's are."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(POOL, np.float32) * np.float32(0.02)
    pool = (values.view(np.uint32) >> 16).astype(np.uint16)
    weights = PackedWeights(np.empty(sum(map(prod, shapes.values())), np.uint16), shapes)
    for at in range(0, len(weights.items), CHUNK):
        chunk = weights.items[at : at + CHUNK]
        start = int(rng.integers(0, POOL - CHUNK))
        chunk[:] = pool[start : start + len(chunk)]
    return weights


def successor(base: PackedWeights, density: float, seed: int = 1) -> PackedWeights:
    """Make the weights after: each value changes with the same chance, by one of `STEPS`."""
    rng = np.random.default_rng(seed)
    new = base.copy()
    for at in range(0, len(new.items), CHUNK):
        chunk = new.items[at : at + CHUNK]
        # Distances of coin flips are geometric; so many reach over the end but once in a billion.
        expected = len(chunk) * density
        there = np.cumsum(rng.geometric(density, int(expected + 6 * sqrt(expected)) + 10)) - 1
        there = there[: np.searchsorted(there, len(chunk))]
        chunk[there] += STEPS[rng.integers(0, len(STEPS), len(there))]
    return new


@dataclass(frozen=True, slots=True)
class Change:
    """What differs between two sets, and the least that any format can take for it."""

    items: int
    changed: int
    floor_bytes: float
    """Entropy of positions, each of a tensor's items changing with that tensor's density, and of differences."""

    @property
    def density(self) -> float:
        """Share of items that changed."""
        return self.changed / self.items


def change_between(base: PackedWeights, new: PackedWeights) -> Change:
    """Compare two sets item by item."""
    changed, bits = 0, 0.0
    differences: Counter[int] = Counter()
    after = new.tensors
    for name, tensor in base.tensors.items():
        old, there = items_of(tensor), 0
        for at in range(0, len(old), CHUNK):
            found = _differences(old[at : at + CHUNK], items_of(after[name])[at : at + CHUNK])
            there += found.total()
            differences += found
        changed += there
        density = there / max(1, len(old))
        bits += len(old) * entropy([density, 1 - density])
    bits += changed * entropy([count / changed for count in differences.values()])
    return Change(len(base.items), changed, bits / 8)


def entropy(chances: list[float]) -> float:
    """Bits."""
    return float(sum(-p * np.log2(p) for p in chances if p))


def _differences(old: Items, new: Items) -> Counter[int]:
    values, counts = np.unique(find_changes(old, new)[1], return_counts=True)
    return Counter(dict(zip(values.tolist(), counts.tolist(), strict=True)))
