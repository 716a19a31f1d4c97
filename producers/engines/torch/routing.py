"""Which experts a model sent its tokens to, as its routers report them."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from headrace.infra.weights.experts import choose_id_type, routers_of
from headrace.producers.engines.contract import EngineError


class RoutingRecord:
    """What the routers of a model chose in its last forward pass.

    Raises EngineError for routers that do not report the chosen experts.
    """

    def __init__(self, model: Any) -> None:
        routers = routers_of(model)
        self.shape = len(routers), int(routers[0].top_k)
        """(layers, experts per token)"""
        self.dtype: npt.DTypeLike = choose_id_type(routers[0].num_experts)
        self._wide = torch.uint8 if self.dtype is np.uint8 else torch.uint16
        self._chosen: dict[int, Any] = {}
        for layer, router in enumerate(routers):
            router.register_forward_hook(partial(self._record_chosen, layer))
        self._try_out(model)

    def chosen_experts(self) -> torch.Tensor:
        """Return the experts uint8 or uint16 [n, layers, experts per token] of the last forward pass's n tokens."""
        return torch.stack([self._chosen[layer] for layer in range(self.shape[0])], 1).to(self._wide)

    def __deepcopy__(self, memo: dict[int, Any]) -> RoutingRecord:
        """Return a copy without the chosen experts, because tensors of a forward pass cannot be copied."""
        copied = copy.copy(self)
        copied._chosen = {}  # noqa: SLF001 - it is one of us
        return copied

    def _record_chosen(self, layer: int, _router: Any, _given: Any, found: Any) -> None:
        self._chosen[layer] = found[-1]

    def _try_out(self, model: Any) -> None:
        model.base_model(input_ids=torch.tensor([[0, 1]], device=model.device), use_cache=False)
        for found in self._chosen.values():
            if found.shape != (2, self.shape[1]) or found.is_floating_point():
                raise EngineError(
                    f"rollout.record_routing: the routers of the model ({model.config.model_type}) do not report the "
                    "experts that they choose; remove this key"
                )
