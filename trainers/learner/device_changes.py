"""What changed between two versions, found on a GPU: both travel there, and only what changed comes back.

The snapshots of a GPU's trainer lie in pinned memory, which crosses the bus several times as fast as a processor's two
or eight cores compare. Nothing stays behind on the device.
"""

from __future__ import annotations

import numpy as np
import torch

from headrace.infra.weights.coding import FindChanges, Items, Positions, find_changes


def find_changes_on(device: torch.device) -> FindChanges:
    """Build what does the work of `find_changes` on a device; may be called by many threads.

    It takes twice a block there, and eight bytes for every item that changed.
    """
    is_gpu = device.type == "cuda"
    stream = torch.cuda.Stream(device) if is_gpu else None  # type: ignore[no-untyped-call]  # untyped there

    def find(old: Items, new: Items) -> tuple[Positions, Items]:
        with torch.cuda.stream(stream):  # None stands for the stream of always
            before, after = _on(device, old), _on(device, new)
            where = torch.nonzero(before != after).squeeze(1)
            differences = after[where] - before[where]  # wraps, as that of unsigned items does
            return where.to(torch.int32).cpu().numpy(), differences.cpu().numpy().view(old.dtype)

    return find


def find_changes_for(device: str) -> FindChanges:
    """Return how a trainer on that device finds what changed."""
    found = torch.device(device)
    return find_changes if found.type == "cpu" else find_changes_on(found)


def _on(device: torch.device, items: Items) -> torch.Tensor:
    signed = items.view(f"<i{items.itemsize}")
    if not signed.flags.writeable:  # torch knows no tensors that may only be read
        signed = np.array(signed)
    return torch.from_numpy(signed).to(device, non_blocking=True)
