"""Finds the changes between two versions on a GPU: both are copied there, and only the changes come back.

The snapshots of a trainer on a GPU are in pinned memory. Copying them over the bus is several times as fast as
comparing them with two to eight CPU cores. Nothing stays on the device.
"""

from __future__ import annotations

import numpy as np
import torch

from headrace.infra.weights.coding import FindChanges, Items, Positions, find_changes


def build_change_finder(device: torch.device) -> FindChanges:
    """Return a function that does the work of `find_changes` on a device; many threads may call it.

    It needs memory for two blocks on the device, and eight bytes for every changed item.
    """
    is_gpu = device.type == "cuda"
    stream = torch.cuda.Stream(device) if is_gpu else None  # type: ignore[no-untyped-call]  # untyped there

    def find(old: Items, new: Items) -> tuple[Positions, Items]:
        with torch.cuda.stream(stream):  # None: the default stream
            before, after = _on(device, old), _on(device, new)
            where = torch.nonzero(before != after).squeeze(1)
            differences = after[where] - before[where]  # wraps around, as for unsigned items
            return where.to(torch.int32).cpu().numpy(), differences.cpu().numpy().view(old.dtype)

    return find


def choose_change_finder(device: str) -> FindChanges:
    """Return the function by which a trainer on that device finds changes."""
    found = torch.device(device)
    return find_changes if found.type == "cpu" else build_change_finder(found)


def _on(device: torch.device, items: Items) -> torch.Tensor:
    signed = items.view(f"<i{items.itemsize}")
    if not signed.flags.writeable:  # torch has no read-only tensors
        signed = np.array(signed)
    return torch.from_numpy(signed).to(device, non_blocking=True)
