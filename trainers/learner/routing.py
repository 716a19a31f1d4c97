"""The routers of a mixture of experts in training: replay of the engine's routing, and load balance.

Hooks on transformers' routers do all the work, so packed, padded and recomputed passes behave the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import transformers

from headrace.infra.errors import UsageError
from headrace.infra.recipe.settings import Recipe, TrainerSettings
from headrace.infra.weights.experts import routers_of
from headrace.infra.weights.model_config import EXPERT_COUNTS
from headrace.trainers.batches.batch import MicroBatch
from headrace.trainers.learner.limits import RoutingLimits
from headrace.trainers.learner.model import config_of
from headrace.trainers.losses.auxiliary import load_balance


class Routers:
    """The routers of a model, layer by layer. For a model without experts, all methods do nothing."""

    def __init__(self, model: transformers.PreTrainedModel) -> None:
        self._kind = model.config.model_type
        self._routers = routers_of(model)
        self._replays = self._balances = False
        self._given: torch.Tensor | None = None
        """int64[tokens, layers, experts per token] of the current pass and its recomputation; -1 for unknown ones."""
        self._listens = False
        self._outputs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """Results of the last pass by layer: the logits of all inputs, with gradient, and the chosen experts."""
        self._inputs: torch.Tensor | None = None
        """int64[I], the inputs of the last pass that are not padding."""
        self._load: torch.Tensor | None = None
        """int64[layers, experts], the number of a minibatch's inputs that each expert got."""
        self._are_known = all(_has_known_weighing(router) for router in self._routers)
        for layer, router in enumerate(self._routers):
            router.register_forward_hook(partial(self._route, layer))

    def apply_settings(self, settings: TrainerSettings) -> None:
        """Use other settings. Raises UsageError for settings that this model does not support."""
        self._given = self._load = None
        self._replays, self._balances = settings.replay_routing, settings.router_aux > 0
        _refuse_without_experts(settings, bool(self._routers), self._kind)
        if (self._replays or self._balances) and not self._are_known:
            raise UsageError(
                "trainer.replay_routing and trainer.router_aux support only routers that take the top k of a softmax; "
                f"the routers of {self._kind} work in another way: leave both settings out"
            )

    @property
    def limits(self) -> RoutingLimits | None:
        """Limits of the routing that this model can replay; None if none is replayed."""
        if not self._replays:
            return None
        return RoutingLimits(len(self._routers), self._routers[0].num_experts, self._routers[0].top_k)

    @contextmanager
    def follow_engine(self, micro: MicroBatch, device: torch.device, *, counts: bool = True) -> Iterator[None]:
        """Make forward passes in the block use the engine's experts.

        So does recomputation, until the next pass or `stop_following`.

        Between `begin_count` and `end_count`, inputs of passes without gradient are counted if `counts`.
        """
        if not (self._replays or self._balances):
            yield
            return
        known = micro.routing if self._replays else None
        self._given = None if known is None else torch.from_numpy(known).to(device).long()
        self._inputs = torch.from_numpy(micro.inputs).to(device)
        self._listens = self._balances
        try:
            yield
        finally:
            self._listens = False
            if not torch.is_grad_enabled():
                self._given = None  # this pass is not recomputed
        if counts and self._load is not None and not torch.is_grad_enabled():
            experts = self._load.shape[1]
            sent = (chosen[self._inputs].flatten() for _, chosen in self._router_outputs())
            self._load += torch.stack([torch.bincount(each, minlength=experts) for each in sent])

    def stop_following(self) -> None:
        """Let the model route by itself until `follow_engine`."""
        self._given, self._outputs = None, {}

    def begin_count(self) -> None:
        """Begin the counts of a minibatch."""
        if self._balances:
            weight = self._routers[0].weight
            self._load = torch.zeros((len(self._routers), len(weight)), dtype=torch.int64, device=weight.device)

    def end_count(self, total: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Add the counts of all processes with `total`."""
        if self._load is not None:
            self._load = total(self._load)

    def imbalance(self) -> torch.Tensor:
        """Return the last pass's share of the minibatch's load-balance loss, float32[], a mean over layers: 1 is best.

        The shares of experts are counted before over the whole minibatch; only the gates' probabilities are the pass's
        own. So the sum does not depend on how a minibatch is cut.
        """
        assert self._load is not None  # noqa: S101 - `begin_count` was called
        sums = torch.stack([logits[self._inputs].float().softmax(-1).sum(0) for logits, _ in self._router_outputs()])
        sent = self._load.sum(1, keepdim=True)  # inputs times experts per token
        shares, means = self._load / sent, sums * self._routers[0].top_k / sent
        return torch.stack([load_balance(*layer) for layer in zip(shares, means, strict=True)]).mean()

    def _router_outputs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [self._outputs[layer] for layer in range(len(self._routers))]

    def _route(self, layer: int, router: Any, _inputs: Any, output: Any) -> Any:
        """Replace a router's choice by the given experts, and record its outputs."""
        if self._given is None and not self._listens:
            return output
        logits, weights, chosen = output
        if self._given is not None:
            given = self._given[:, layer]
            chosen = torch.where(given < 0, chosen, given)
            weights = _weights(router, logits, chosen)
        if self._listens:
            self._outputs[layer] = logits, chosen
        return logits, weights, chosen


def check_experts(recipe: Recipe, policy: str) -> None:
    """Raise UsageError if a trainer replays or balances experts but the model has none."""
    settings = recipe.trainer_of(policy)
    if settings.replay_routing or settings.router_aux:
        config = config_of(recipe.policies[policy]).get_text_config()
        has_experts = any(getattr(config, name, None) for name in EXPERT_COUNTS)
        _refuse_without_experts(settings, has_experts, config.model_type)


def _refuse_without_experts(settings: TrainerSettings, has_experts: bool, kind: str) -> None:
    for name, wanted in (("replay_routing", settings.replay_routing), ("router_aux", settings.router_aux > 0)):
        if wanted and not has_experts:
            raise UsageError(f"trainer.{name} has no effect: the {kind} model has no experts. Leave it out")


@torch.no_grad()
def _has_known_weighing(router: Any) -> bool:
    """Check on an input that a router weights its experts as `_weights` does, before its weights are sharded."""
    size = router.weight.shape[1]
    states = torch.linspace(-2, 3, 5 * size, device=router.weight.device).sin().view(5, size)
    output = router(states.to(router.weight.dtype))
    return len(output) == 3 and torch.equal(_weights(router, output[0], output[2]), output[1])


def _weights(router: Any, logits: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Return the weights [n, experts per token] of chosen experts, as softmax routers compute them."""
    weights = logits.softmax(-1, dtype=torch.float32).gather(1, chosen)
    if getattr(router, "norm_topk_prob", False):
        weights = weights / weights.sum(-1, keepdim=True)
    return weights.to(logits.dtype)
