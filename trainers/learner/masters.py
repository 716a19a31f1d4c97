"""The fp32 masters of a model's weights, their gradients, and AdamW on them.

The model holds the masters rounded to bf16, as they are published, so engine and trainer evaluate the same function. An
update smaller than half a unit in bf16's last place is not lost: it accumulates in the masters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import torch
from torch.distributed.tensor import DTensor

from headrace.infra.recipe.settings import TrainerSettings

WeightState: TypeAlias = dict[str, dict[str, torch.Tensor]]
"""Tensors by kind ("masters", and what the optimizer keeps: "exp_avg", "exp_avg_sq", "step"), then by weight name."""


class Masters:
    """Masters of named parameters.

    Args:
        parameters: Parameters of the compute copy by name; they get the published values here.
        values: Unrounded float32 weights, by the same names and on the same device; kept and written to.
        settings: Optimizer settings; `apply_settings` changes them.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        values: Mapping[str, torch.Tensor],
        settings: TrainerSettings,
    ) -> None:
        self._parameters = dict(parameters)
        self.values = dict(values)
        """Master weights by name, float32; written to in place."""
        self.gradients = {name: torch.zeros_like(master) for name, master in self.values.items()}
        """Sums of the minibatch's gradients by name, float32."""
        for name, master in self.values.items():
            master.grad = self.gradients[name]
        masters = self.values.values()
        kinds = [(is_matrix, lies_apart) for lies_apart in (False, True) for is_matrix in (True, False)]
        groups = {kind: [m for m in masters if (m.ndim > 1, isinstance(m, DTensor)) == kind] for kind in kinds}
        # A fused kernel takes either only whole tensors or only sharded tensors.
        decays = [{"params": some, "decays": is_matrix} for (is_matrix, _), some in groups.items() if some]
        self._optimizer = torch.optim.AdamW(decays, foreach=False, fused=False)
        self.apply_settings(settings)
        self.round()

    def apply_settings(self, settings: TrainerSettings) -> None:
        """Use other settings. Weight decay applies to matrices, not to norms and biases."""
        for group in self._optimizer.param_groups:
            decay = settings.weight_decay if group["decays"] else 0.0
            group |= {"betas": settings.betas, "eps": settings.adam_eps, "weight_decay": decay}
            # The fused kernel gives other bits than the plain loop, which every device and torch build has.
            group["fused"] = settings.fused_optimizer
        for master, state in self._optimizer.state.items():
            if state:  # empty before the first step
                state["step"] = self._copy_to_device("step", state["step"], master)

    def clear(self) -> None:
        """Begin a minibatch."""
        for gradient in self.gradients.values():
            gradient.zero_()

    def take_gradients(self) -> None:
        """Add the model's gradients to the masters', and clear them.

        They are summed here in fp32, because autograd would sum micro-batches in bf16 on a GPU.
        """
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                self.gradients[name] += parameter.grad
                parameter.grad = None

    def drop_gradients(self) -> None:
        """Clear gradients that a failed pass left in the model."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def gradient_norm(self, gather: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return the global L2 norm of the gradients, float32[]; `gather` makes a sharded tensor whole."""
        return _norm(self.gradients.values(), gather)

    def norm(self, gather: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return the norm of the masters; it is finite only if all masters and their published values are."""
        return _norm(self.values.values(), gather)

    def clip(self, norm: torch.Tensor, largest: float) -> None:
        """Scale the gradients, whose global norm is `norm`, down to norm `largest` if they exceed it."""
        torch.nn.utils.clip_grads_with_norm_(self.values.values(), largest, norm, foreach=False)

    def step(self, learning_rate: float) -> None:
        """Take an optimizer step, and copy the new values to the model."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self.round()

    @torch.no_grad()
    def round(self, others: Mapping[str, torch.Tensor] | None = None) -> None:
        """Give the model the masters rounded as published, or `others` rounded in the same way."""
        for name, master in (others or self.values).items():
            self._parameters[name].copy_(master.to(torch.bfloat16))

    def state(self) -> WeightState:
        """Return a copy of all state that a later step depends on."""
        state: WeightState = {"masters": {name: master.clone() for name, master in self.values.items()}}
        for name, master in self.values.items():
            for kind, value in self._optimizer.state[master].items():
                state.setdefault(kind, {})[name] = value.clone()
        return state

    @torch.no_grad()
    def load(self, state: WeightState) -> None:
        """Load a state whose masters have the same names and shapes; its tensors are not kept."""
        for name, master in self.values.items():
            master.copy_(state["masters"][name])
        kinds = {kind: named for kind, named in state.items() if kind != "masters"}
        self._optimizer.state.clear()
        for name, master in self.values.items():
            own = {
                kind: self._copy_to_device(kind, named[name], master) for kind, named in kinds.items() if name in named
            }
            if own:
                self._optimizer.state[master] = own
        self.round()

    def _copy_to_device(self, kind: str, value: torch.Tensor, master: torch.Tensor) -> torch.Tensor:
        """Return a copy of an optimizer value on the device where the optimizer needs it.

        This is the master's device, except for the step count: only the fused kernel counts steps on a GPU.
        """
        counts_here = kind == "step" and not self._optimizer.param_groups[0]["fused"]
        return value.to("cpu" if counts_here else master.device, copy=True)


def _norm(tensors: Iterable[torch.Tensor], gather: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    kinds: dict[bool, list[torch.Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault(isinstance(tensor, DTensor), []).append(tensor)
    parts = (kinds[lies_apart] for lies_apart in (True, False) if lies_apart in kinds)
    norms = [gather(torch.nn.utils.get_total_norm(some, foreach=False)) for some in parts]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
