"""A policy loss put together by the names of a recipe: loss, aggregation, KL, entropy.

`policy_loss` is the one call for a batch that is held whole. A learner that cuts its minibatches makes an `Objective`
once, asks it for the `totals` of each minibatch, and for the `share` of each micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from infra.errors import UsageError
from infra.named import check_options, named
from trainers.losses.aggregation import AGGREGATIONS
from trainers.losses.divergence import DIVERGENCES
from trainers.losses.metrics import added, means
from trainers.losses.ppo import ppo
from trainers.losses.tokens import Count, TokenLoss, Totals, TrainedTokens, log_ratio, totals_of

Loss: TypeAlias = Callable[..., TokenLoss]
Table: TypeAlias = Mapping[str, Any]
"""As in a recipe: `use`, and the options of what it names."""

LOSSES: dict[str, Loss] = {"ppo": ppo}
"""By the name in a recipe; each is called with TrainedTokens and its options."""
OWN_AGGREGATION: dict[str, str] = {}
"""The aggregation of the paper, where that is not the token mean."""


def policy_loss(
    tokens: TrainedTokens,
    use: str = "ppo",
    aggregation: str | Table | None = None,
    *,
    kl: Table | None = None,
    entropy: float = 0.0,
    totals: Totals | None = None,
    **options: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the scalar loss to be minimised, with its gradient, and its metrics as means over these tokens.

    Args:
        tokens: N tokens of whole sequences.
        use: A name of LOSSES, or `package.module:function` of the same shape.
        aggregation: A name of AGGREGATIONS, or a table of `use` and its options; None: the one of the loss's paper.
        kl: Table of a KL term to the reference policy: `use` (k1, k2, k3), `weight`, and `unbiased = true` to multiply
            by pi_theta / pi_b, which makes value and gradient right off policy (arXiv 2512.02556).
        entropy: Weight of an entropy bonus.
        totals: Of the minibatch that these tokens are a part of; None: they are the whole.
        options: Of the loss.

    Raises UsageError for a name or an option that there is not, with those there are.
    """
    objective = objective_of({"use": use, **options}, aggregation, kl=kl, entropy=entropy)
    loss, sums = objective.share(tokens, totals or objective.totals(tokens))
    return loss, means(sums)


@dataclass(frozen=True, slots=True)
class Kl:
    """A KL term of the loss; checked, as a recipe gives it. Raises UsageError."""

    use: str = "k3"
    weight: float = 1e-3
    unbiased: bool = False

    def __post_init__(self) -> None:
        named("kl", self.use, DIVERGENCES)
        if self.weight < 0:
            raise UsageError(f"kl: weight must be at least 0, got {self.weight}")

    def terms(self, tokens: TrainedTokens) -> Tensor:
        """Per token, float[N], without the weight."""
        if tokens.reference is None:
            raise UsageError("kl: the tokens have no log-probabilities of a reference policy")
        terms = DIVERGENCES[self.use](tokens.logprobs, tokens.reference)
        return terms * log_ratio(tokens.logprobs, tokens.behaviour).exp() if self.unbiased else terms


@dataclass(frozen=True, slots=True)
class Objective:
    """A policy loss with its options, its names found and its options checked: see `objective_of`."""

    loss: Loss
    aggregate: Callable[..., Tensor]
    kl: Kl | None = None
    entropy: float = 0.0

    @torch.no_grad()
    def totals(self, tokens: TrainedTokens, all_sequences: Count | None = None) -> Totals:
        """Return the denominators of a minibatch from all its tokens; `all_sequences` if some have no token in it."""
        return totals_of(tokens.sequences, tokens.kept, all_sequences)

    def share(self, tokens: TrainedTokens, totals: Totals) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a part's share of the loss (the shares of a minibatch add up to it), and metrics as sums over tokens.

        See `trainers.losses.metrics` for how metrics are put together.
        """
        terms, metrics, rejected = self.loss(tokens)
        tokens = tokens.without(rejected)
        count = {"tokens": torch.full((), tokens.logprobs.numel(), dtype=torch.float64, device=terms.device)}
        metrics = added(metrics, count)
        if self.kl is not None:
            divergence = self.kl.terms(tokens)
            terms = terms + self.kl.weight * divergence
            metrics["reference_kl"] = divergence.detach().double().sum()
        if tokens.entropies is not None:
            metrics["entropy"] = tokens.entropies.detach().double().sum()
        if self.entropy:
            if tokens.entropies is None:
                raise UsageError("entropy: the tokens have no entropies")
            terms = terms - self.entropy * tokens.entropies
        if tokens.kept is not None:
            terms = torch.where(tokens.kept, terms, torch.zeros_like(terms))
        return self.aggregate(terms, tokens.sequences, tokens.kept, totals), metrics


def objective_of(
    loss: str | Table = "ppo", aggregation: str | Table | None = None, *, kl: Table | None = None, entropy: float = 0.0
) -> Objective:
    """Put an objective together from what a recipe says; the parameters are those of `policy_loss`.

    Raises UsageError for a name or an option that there is not, or a value out of range, before any batch is there.
    """
    found, use = _with_options("loss", loss, LOSSES)
    own = OWN_AGGREGATION.get(use, "token_mean")
    aggregate, _ = _with_options("aggregation", own if aggregation is None else aggregation, AGGREGATIONS)
    if kl is not None:
        check_options("kl", _kl, kl)
    objective = Objective(found, aggregate, None if kl is None else Kl(**kl), entropy)
    objective.share(*_example())  # says of values out of range what the functions themselves say
    return objective


def _kl(*, use: str = "k3", weight: float = 1e-3, unbiased: bool = False) -> None:
    """Have the parameters of Kl."""


def _with_options(
    where: str, table: str | Table, shipped: Mapping[str, Callable[..., Any]]
) -> tuple[Callable[..., Any], str]:
    options = {"use": table} if isinstance(table, str) else dict(table)
    if "use" not in options:
        raise UsageError(f"{where}: `use` is missing; take one of {', '.join(shipped)}")
    use = options.pop("use")
    function = named(where, use, shipped)
    check_options(f"{where} {use}", function, options)
    return partial(function, **options), use


def _example() -> tuple[TrainedTokens, Totals]:
    """Return two made-up tokens with all that a loss may ask for."""
    zeros = torch.zeros(2)
    numbers = torch.zeros(2, dtype=torch.int64)
    tokens = TrainedTokens(
        zeros, zeros, zeros, numbers, proximal=zeros, reference=zeros, entropies=zeros, versions=numbers, version=0
    )
    return tokens, Totals(2, 1, 1)
