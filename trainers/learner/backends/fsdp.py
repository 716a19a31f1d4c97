"""FSDP2: all processes shard weights, masters and moments; a layer is whole only while it computes.

Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (2023); `torch.distributed.fsdp`.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from headrace.trainers.learner.backends.mesh import MeshBackend
from headrace.trainers.learner.layers import layers_of
from headrace.trainers.learner.logprobs import TokenScorer


class FullyShardedBackend(MeshBackend):
    """Each process holds an n-th of every parameter and computes every n-th micro-batch."""

    name = "fsdp2"

    def __init__(self, mesh: DeviceMesh, device: torch.device) -> None:
        super().__init__(mesh, device)
        self.share = (mesh.get_local_rank(), mesh.size())

    def place(self, scorer: TokenScorer) -> None:
        """Shard each layer separately, and all parameters outside layers together.

        The latter are freed after each forward pass too; otherwise a later pass would use values from before an update.
        """
        precision = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for module in (*layers_of(scorer.model), scorer):
            fully_shard(module, mesh=self._mesh, mp_policy=precision, reshard_after_forward=True)
        register_fsdp_forward_method(scorer, "try_packing")

    def total(self, values: torch.Tensor, *, largest: bool = False) -> torch.Tensor:
        """Return sum or maximum over all processes."""
        dist.all_reduce(values, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, self._mesh.get_group())
        return values
