"""Common base of backends with several processes: tensors on a device mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor


class MeshBackend:
    """Base of a backend whose parameters are DTensors, or whole on every process.

    Args:
        mesh: One dimension over all processes.
        device: Device of this process.
    """

    name: ClassVar[str]

    def __init__(self, mesh: DeviceMesh, device: torch.device) -> None:
        self._mesh = mesh
        self.device = device
        self.leads = dist.get_rank() == 0
        self.fingerprint = self.fingerprint_on(mesh.size())

    @classmethod
    def fingerprint_on(cls, processes: int) -> Mapping[str, str]:
        """Return the fingerprint part for the number of processes, on which the order of sums depends."""
        return {"backend": f"{cls.name} on {processes} processes"}

    def spread(self, whole: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:
        """Scatter or broadcast the tensor from the first process."""
        here = whole.to(self.device, copy=True)
        if isinstance(like, DTensor):
            return distribute_tensor(here, self._mesh, like.placements)
        dist.broadcast(here, 0, self._mesh.get_group())
        return here

    def gather(self, part: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return the whole tensor on every process; only one whole tensor is in memory at a time."""
        part = part.to(dtype or part.dtype)
        return part.full_tensor() if isinstance(part, DTensor) else part
