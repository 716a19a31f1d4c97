"""A `transformers` cache in which every row (slot) has its own length, so requests can join and leave between tokens.

One tensor per layer for keys and one for values, [slot, position, kv head, head size]. Live requests always occupy
slots 0..n-1. Before each forward the caller announces it: a prefill of some slots from position 0, or one token for
each live slot at that slot's own position. Stored states beyond a slot's position are stale and masked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers.cache_utils import Cache, CacheLayerMixin

SlotIndex = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Forward:
    """The current forward pass, as the caller announced it; shared by all layers of a cache."""

    slots: int = 0  # capacity
    positions: int = 0  # capacity
    first: int = 0  # prefill: the first slot written
    share: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    """Prefill: int64[b], the computed row that each slot takes."""
    cells: torch.Tensor | None = None
    """One token each: int64[n], slot * positions + position; None in a prefill."""
    width: int = 0  # positions that attention looks at


class SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call] # transformers' own hook for subclasses
    """Keys and values of one decoder layer."""

    is_sliding = False

    def __init__(self, forward: _Forward) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # transformers
        self._forward = forward
        self._keys: torch.Tensor | None = None
        self._values: torch.Tensor | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate nothing: stores are made in `update`, when the number of heads and their size are known."""

    def grow(self) -> None:
        """Take the new capacity, keeping what is stored."""
        if self._keys is not None:
            self._keys = self._grow_store(self._keys)
        if self._values is not None:
            self._values = self._grow_store(self._values)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store states [b, heads, T, size]; return what attention reads, [b, heads, width, size]."""
        if self._keys is None or self._values is None:
            self._keys, self._values = self._make_zeros(key_states), self._make_zeros(value_states)
        if self._forward.cells is not None:
            cells = self._forward.cells
            return self._append(self._keys, key_states, cells), self._append(self._values, value_states, cells)
        self._fill(self._keys, key_states)
        self._fill(self._values, value_states)
        return key_states, value_states

    def move(self, sources: list[int], targets: list[int], width: int) -> None:
        """Copy the first `width` positions of slots to other slots."""
        for store in self._stores():
            store[targets, :width] = store[sources, :width]

    def wipe(self, first: int) -> None:
        """Zero all slots from `first` on."""
        for store in self._stores():
            store[first:].zero_()

    def _stores(self) -> list[torch.Tensor]:
        return [store for store in (self._keys, self._values) if store is not None]

    def _make_zeros(self, states: torch.Tensor) -> torch.Tensor:
        # Zeros and not empty: masked positions are multiplied by 0, which a stray NaN would survive.
        shape = (self._forward.slots, self._forward.positions, states.shape[1], states.shape[3])
        return torch.zeros(shape, dtype=states.dtype, device=states.device)

    def _grow_store(self, store: torch.Tensor) -> torch.Tensor:
        grown = self._make_zeros(store.transpose(1, 2))
        grown[: store.shape[0], : store.shape[1]] = store
        return grown

    def _append(self, store: torch.Tensor, states: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        store.view(-1, *store.shape[2:]).index_copy_(0, cells, states[:, :, 0])
        return store[: len(states), : self._forward.width].transpose(1, 2)

    def _fill(self, store: torch.Tensor, states: torch.Tensor) -> None:
        first, share = self._forward.first, self._forward.share
        store[first : first + len(share), : self._forward.width] = states.transpose(1, 2)[share]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(positions attention looks at, offset), for models that ask although the mask is given."""
        del query_length
        return self._forward.width, 0

    def get_seq_length(self) -> int:
        """Positions of the longest slot before the current forward pass."""
        return 0 if self._forward.cells is None else self._forward.width - 1

    def get_max_length(self) -> int:
        """No maximum: the cache grows."""
        return -1


class SlotCache(Cache):
    """The cache of one weight set."""

    def __init__(self, n_layers: int) -> None:
        self._forward = _Forward()
        self._slot_layers = [SlotLayer(self._forward) for _ in range(n_layers)]
        super().__init__(layers=list(self._slot_layers))

    def reserve(self, slots: int, positions: int) -> None:
        """Make room for this many slots and positions; never shrinks."""
        forward = self._forward
        if slots <= forward.slots and positions <= forward.positions:
            return
        forward.slots, forward.positions = max(slots, forward.slots), max(positions, forward.positions)
        for layer in self._slot_layers:
            layer.grow()

    def expect_prefill(self, first: int, share: torch.Tensor, width: int) -> None:
        """Announce that the next forward computes positions 0..width-1; slot first+i takes computed row share[i]."""
        self._forward.first, self._forward.share, self._forward.cells, self._forward.width = first, share, None, width

    def cells(self, positions: SlotIndex) -> SlotIndex:
        """int64[n]: where slots 0..n-1 keep their positions[i]; the next position is the next cell."""
        return np.arange(len(positions)) * self._forward.positions + positions

    def expect_tokens(self, cells: torch.Tensor, width: int) -> None:
        """Announce one token for each of slots 0..n-1 in the next forward, kept in cells, all below width."""
        self._forward.cells, self._forward.width = cells, width

    def move(self, sources: list[int], targets: list[int], width: int) -> None:
        """Copy the first `width` positions of slots to other slots."""
        for layer in self._slot_layers:
            layer.move(sources, targets, width)

    def wipe(self, first: int) -> None:
        """Zero all slots from `first` on, so that no NaN or infinity stays there."""
        for layer in self._slot_layers:
            layer.wipe(first)


def place_on_device(array: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Return the array as a tensor on a device. On the CPU it shares the memory of the array."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)
