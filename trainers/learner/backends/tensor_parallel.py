"""Tensor parallelism: the processes share the matrices of every layer, and compute each token together.

Shoeybi et al., "Megatron-LM" (2019); `torch.distributed.tensor.parallel`. A model's config declares the cuts
(transformers' `base_model_tp_plan`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.distributed as dist
import transformers
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from headrace.infra.errors import UsageError
from headrace.trainers.learner.backends.mesh import MeshBackend
from headrace.trainers.learner.layers import decoder_of
from headrace.trainers.learner.logprobs import TokenScorer

SHARED_STYLE = "replicated_with_grad_allreduce"
"""Style of modules that every process holds whole but applies only to its own heads."""
_STYLES: Mapping[str, type[ParallelStyle]] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
_DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size")
"""Sizes in a model's config that are cut over the processes."""


class TensorParallelBackend(MeshBackend):
    """Each process holds an n-th of every layer's matrices, and all other parameters whole."""

    name = "tensor parallel"
    share = (0, 1)

    def place(self, scorer: TokenScorer) -> None:
        """Cut the model as its config declares. Raises UsageError if it cannot be cut into so many parts."""
        plan = _plan(scorer.model.config.get_text_config(), self._mesh.size())
        scorer.to(self.device)
        decoder = decoder_of(scorer.model)
        parallelize_module(decoder, self._mesh, {name: _STYLES[how]() for name, how in plan.items() if how in _STYLES})
        shared = tuple(name.rpartition(".")[2] for name, how in plan.items() if how == SHARED_STYLE)
        for name, module in decoder.named_modules():
            if name.endswith(shared):
                for parameter in module.parameters():
                    parameter.register_hook(partial(_sum_gradient, self._mesh.get_group()))

    def total(self, values: torch.Tensor, *, largest: bool = False) -> torch.Tensor:  # noqa: ARG002 - all are equal
        """Return the values unchanged, because every process computes every token."""
        return values


def _plan(config: transformers.PreTrainedConfig, parts: int) -> dict[str, str]:
    plan: dict[str, str] = dict(getattr(config, "base_model_tp_plan", None) or {})
    strange = sorted(set(plan.values()) - {*_STYLES, SHARED_STYLE})
    if not plan or strange:
        why = (
            f"a tensor-parallel plan with unsupported styles ({', '.join(strange)})"
            if strange
            else "no tensor-parallel plan in its config"
        )
        raise UsageError(f"model type {config.model_type} has {why}: set trainer.tensor_parallel = 1")
    for name in _DIVIDED:
        if (count := getattr(config, name, parts)) % parts:
            raise UsageError(
                f"trainer.tensor_parallel = {parts} must divide {', '.join(_DIVIDED)} of the model, but its {name} is "
                f"{count}: set another number, or trainer.tensor_parallel = 1"
            )
    return plan


def _sum_gradient(group: dist.ProcessGroup, gradient: torch.Tensor) -> torch.Tensor:
    total = gradient.clone()
    dist.all_reduce(total, group=group)
    return total
