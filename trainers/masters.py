"""The fp32 masters of a model's weights, their gradients, and AdamW on them.

The model itself holds the masters rounded to bf16, as they are published: engine and trainer then evaluate the same
function, and an update smaller than half a unit in bf16's last place is not lost but waits in the masters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch

from infra.settings import Trainer

State: TypeAlias = dict[str, dict[str, torch.Tensor]]
"""By kind ("masters", and what the optimizer keeps: "exp_avg", "exp_avg_sq", "step"), then by the weight's name."""


class Masters:
    """Masters of named parameters, which become the compute copy.

    Args:
        parameters: By name, in fp32 with unrounded values, on their device.
        dtype: In which the model computes from now on.
        settings: Of the optimizer; `use` changes them.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], dtype: torch.dtype, settings: Trainer) -> None:
        self._parameters = dict(parameters)
        self.values = {name: p.detach().to(torch.float32, copy=True) for name, p in parameters.items()}
        """By name; written to in place."""
        self.gradients = {name: torch.zeros_like(master) for name, master in self.values.items()}
        """float32, by name: of the minibatch that is being summed up."""
        for name, master in self.values.items():
            master.grad = self.gradients[name]
        for parameter in self._parameters.values():
            # Not model.to(dtype): that would round the rotary frequencies too.
            parameter.data = parameter.data.to(dtype)
            parameter.grad = None  # a warm start may have left one
        masters = self.values.values()
        groups = [{"params": [m for m in masters if m.ndim > 1]}, {"params": [m for m in masters if m.ndim < 2]}]
        self._optimizer = torch.optim.AdamW(groups, foreach=False, fused=False)
        self.use(settings)
        self.round()

    def use(self, settings: Trainer) -> None:
        """Go on with other settings. Weight decay is for matrices: norms and biases have none."""
        for group, decay in zip(self._optimizer.param_groups, (settings.weight_decay, 0.0), strict=True):
            group |= {"betas": settings.betas, "eps": settings.adam_eps, "weight_decay": decay}
            # The fused kernel gives other bits than the plain loop; the loop is what every device and torch build has.
            group["fused"] = settings.fused_optimizer
        for master, state in self._optimizer.state.items():
            if state:  # empty before the first step
                state["step"] = self._placed("step", state["step"], master)

    def clear(self) -> None:
        """Begin a minibatch."""
        for gradient in self.gradients.values():
            gradient.zero_()

    def take_gradients(self) -> None:
        """Add the model's gradients to the masters', and clear them.

        Summed in fp32 here, not by autograd, which would sum micro-batches in bf16 on a GPU.
        """
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                self.gradients[name] += parameter.grad
                parameter.grad = None

    def drop_gradients(self) -> None:
        """Clear what a pass that failed has left in the model."""
        for parameter in self._parameters.values():
            parameter.grad = None

    def clip(self, largest: float) -> torch.Tensor:
        """Scale the gradients down to a global L2 norm of `largest`, if they exceed it; the norm before, float32[]."""
        return torch.nn.utils.clip_grad_norm_(self.values.values(), largest, foreach=False)

    def step(self, learning_rate: float) -> None:
        """Take a step, and give the model its values."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self.round()

    @torch.no_grad()
    def round(self) -> None:
        """Give the model the published values."""
        for name, master in self.values.items():
            self._parameters[name].copy_(master.to(torch.bfloat16))

    def state(self) -> State:
        """Return a copy of all that a later step depends on."""
        state: State = {"masters": {name: master.clone() for name, master in self.values.items()}}
        for name, master in self.values.items():
            for kind, value in self._optimizer.state[master].items():
                state.setdefault(kind, {})[name] = value.clone()
        return state

    @torch.no_grad()
    def load(self, state: State) -> None:
        """Go on from a state, whose masters must have our names and shapes; its tensors are not kept."""
        for name, master in self.values.items():
            master.copy_(state["masters"][name])
        kinds = {kind: named for kind, named in state.items() if kind != "masters"}
        self._optimizer.state.clear()
        for name, master in self.values.items():
            own = {kind: self._placed(kind, named[name], master) for kind, named in kinds.items() if name in named}
            if own:
                self._optimizer.state[master] = own
        self.round()

    def _placed(self, kind: str, value: torch.Tensor, master: torch.Tensor) -> torch.Tensor:
        """Copy what the optimizer keeps to where it looks for it: only the fused kernel counts steps on a GPU."""
        counts_here = kind == "step" and not self._optimizer.param_groups[0]["fused"]
        return value.to("cpu" if counts_here else master.device, copy=True)
