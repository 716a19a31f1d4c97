"""The training objective, built from a recipe's names: loss, aggregation, correction, KL, entropy.

For a batch that is not cut, call `policy_loss`. A learner that cuts minibatches builds an `Objective` once, asks it for
the `bounds` and `totals` of each whole minibatch, and then calls `compute_loss_share` for each micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from headrace.infra.errors import UsageError
from headrace.infra.own_frames import describe_with_location
from headrace.infra.recipe.named import check_options, find_named
from headrace.trainers.losses.aggregation import AGGREGATIONS
from headrace.trainers.losses.correction import (
    CORRECTIONS,
    Correction,
    log_weights_of,
    perplexity_ratio,
    weight_metrics,
)
from headrace.trainers.losses.decoupled import decoupled_ppo
from headrace.trainers.losses.divergence import DIVERGENCES, cost_to_go
from headrace.trainers.losses.m2po import M2Bounds, m2po, m2po_bounds
from headrace.trainers.losses.metrics import add_metrics, means
from headrace.trainers.losses.ppo import ppo
from headrace.trainers.losses.sequence_ratio import gmpo, gspo
from headrace.trainers.losses.soft import cispo, dppo, gpg, sapo
from headrace.trainers.losses.tokens import (
    Count,
    TokenLoss,
    Totals,
    TrainedTokens,
    check_loss_terms,
    log_ratio,
    totals_of,
)

Loss: TypeAlias = Callable[..., TokenLoss]
Table: TypeAlias = Mapping[str, Any]
"""A table of a recipe: `use` and its options."""

LOSSES: dict[str, Loss] = {
    "ppo": ppo,
    "decoupled_ppo": decoupled_ppo,
    "m2po": m2po,
    "gspo": gspo,
    "gmpo": gmpo,
    "cispo": cispo,
    "sapo": sapo,
    "dppo": dppo,
    "gpg": gpg,
}
"""Shipped losses by their recipe names; each is called with TrainedTokens and its options."""
OWN_AGGREGATION = {"gspo": "sequence_mean", "gmpo": "sequence_mean"}
"""The aggregation that a loss needs to match its paper; for other losses, the token mean."""
KL_PLACES = ("loss", "reward")


def policy_loss(  # noqa: PLR0913 - one for each table of a recipe
    tokens: TrainedTokens,
    use: str = "ppo",
    aggregation: str | Table | None = None,
    *,
    correction: str | Table | Sequence[Table] | None = None,
    kl: Table | None = None,
    entropy: float = 0.0,
    count_rejected: bool = False,
    totals: Totals | None = None,
    bounds: M2Bounds | None = None,
    **options: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the scalar loss to minimise, with its gradient, and its metrics as means over these tokens.

    Args:
        tokens: N tokens of whole sequences.
        use: A name in LOSSES, or `package.module:function` with the same signature.
        aggregation: A name in AGGREGATIONS, or a table of `use` and its options; None: the aggregation of the loss's
            paper.
        correction: A name in CORRECTIONS, or a table of `use` and its options, or several tables: weights multiply, and
        each may reject tokens. With weights, the loss's ratio is to the proximal policy.
        kl: Table of a KL term to the reference policy: `use` (k1, k2, k3; default k3), `weight` (1e-3), `place` ("loss"
        or "reward"), and `unbiased = true` to multiply the loss term by pi_theta / pi_b, which makes value and
        gradient right off policy (arXiv 2512.02556). In the reward, weight * KL of pi_b to pi_ref is subtracted
        from the reward of each token, and thus from the advantage of every token before it in the sequence.
        entropy: Weight of an entropy bonus.
        count_rejected: Count rejected tokens in the denominator, so that many rejections make a smaller step.
        totals: Totals of the minibatch; None: these tokens are the whole minibatch.
        bounds: Bounds of the minibatch, if `use` is m2po.
        options: Options of the loss.

    A rejected token is left out of everything: the policy term, KL, entropy, and the statistics of its sequence. Only
    its KL in the reward still counts in the advantages of earlier tokens, as part of the sequence's return. Raises
    UsageError for an unknown name or option, with the known ones, and for a number that is not finite.
    """
    _check_finite(tokens)
    table = {"use": use, **options}
    objective = objective_of(
        table, aggregation, correction=correction, kl=kl, entropy=entropy, count_rejected=count_rejected
    )
    bounds = bounds or objective.bounds(tokens)
    loss, sums = objective.compute_loss_share(tokens, totals or objective.totals(tokens, None, bounds), bounds)
    return loss, means(sums)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kl:
    """A KL term; its fields are the keys that a recipe may set. Raises UsageError."""

    use: str = "k3"
    weight: float = 1e-3
    place: str = "loss"
    unbiased: bool = False

    def __post_init__(self) -> None:
        if self.use not in DIVERGENCES:
            raise UsageError(f"trainer.kl: {self.use!r} is not known; take one of {', '.join(DIVERGENCES)}")
        if not 0 <= self.weight < math.inf or self.place not in KL_PLACES:
            raise UsageError(
                f"trainer.kl: weight must be finite and at least 0, and place one of {', '.join(KL_PLACES)}; got "
                f"{self.weight}, {self.place!r}"
            )
        if self.unbiased and self.place == "reward":
            raise UsageError(
                'trainer.kl: unbiased has no meaning with place = "reward": leave it out, or set place = "loss"'
            )

    def terms(self, tokens: TrainedTokens) -> Tensor:
        """Return the KL terms float[N] without the weight: of pi_theta in the loss, of pi_b in the reward."""
        if tokens.reference is None:
            raise UsageError(
                "trainer.kl needs the reference policy's log-probabilities, and TrainedTokens.reference is None"
            )
        policy = tokens.logprobs if self.place == "loss" else tokens.behaviour_logprobs
        terms = DIVERGENCES[self.use](policy, tokens.reference)
        return terms * log_ratio(tokens.logprobs, tokens.behaviour_logprobs).exp() if self.unbiased else terms


class _Prepared(NamedTuple):
    tokens: TrainedTokens
    weights: Tensor | None
    metrics: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Objective:
    """A training objective with checked names and options; `objective_of` builds it."""

    loss: partial[TokenLoss]
    aggregate: partial[Tensor]
    corrections: tuple[partial[Correction], ...] = ()
    kl: Kl | None = None
    entropy: float = 0.0
    count_rejected: bool = False

    @property
    def needs(self) -> frozenset[str]:
        """The optional fields of TrainedTokens that this objective needs."""
        needs = {name for name in ("proximal", "versions", "reference", "entropies") if not self._is_unneeded(name)}
        return frozenset(needs | ({"proximal"} if self.corrections or self._is_masked_by_moment else set()))

    @property
    def _is_masked_by_moment(self) -> bool:
        return self.loss.func is m2po and self.loss.keywords.get("variant") == "mask"

    @property
    def has_lookahead(self) -> bool:
        """Whether `bounds` or `totals` depend on log-probabilities under the current weights.

        If so, each optimizer step begins with a forward pass over its whole minibatch. If not, `totals` accepts any
        numbers as `TrainedTokens.logprobs`. The `rejected` of a user's loss must depend neither on log-probabilities
        nor on entropies.
        """
        options = self.loss.keywords
        guesses = self.loss.func is decoupled_ppo and options.get("proximal") == "interpolated"
        is_bound = options.get("behaviour_upper", 1.0) is not None or options.get("behaviour_lower") is not None
        masks = is_bound and options.get("behaviour_action") != "clamp" and not self.count_rejected
        return (self.loss.func in _BOUNDS and not self._is_masked_by_moment) or (guesses and masks)

    @torch.no_grad()
    def bounds(self, tokens: TrainedTokens) -> M2Bounds | None:
        """Return the loss's bounds, computed from all tokens of a minibatch; None if it needs none.

        Use `bounds.part(index)` together with `tokens.part(index)`.
        """
        find = _BOUNDS.get(self.loss.func)
        return None if find is None else find(self._prepare(tokens.detach()).tokens, **self.loss.keywords)

    @torch.no_grad()
    def totals(
        self, tokens: TrainedTokens, all_sequences: Count | None = None, bounds: M2Bounds | None = None
    ) -> Totals:
        """Return the denominators of a minibatch from all its tokens.

        Args:
            tokens: All tokens of the minibatch, or of a rank's part of it: totals add up.
            all_sequences: Number of sequences, also those without a trained token; None: every sequence has one.
            bounds: Result of `bounds` for the minibatch.
        """
        kept = None if self.count_rejected else self._compute_terms(tokens.detach(), bounds).tokens.kept
        return totals_of(tokens.sequences, kept, all_sequences)

    def compute_loss_share(
        self, tokens: TrainedTokens, totals: Totals, bounds: M2Bounds | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a part's share of the loss (the shares of a minibatch add up to it), and metrics as sums over tokens.

        `trainers.losses.metrics` combines the metrics of parts. Raises UsageError for missing input, such as the bounds
        of the minibatch, which cannot be computed from a part.
        """
        prepared, terms, metrics = self._compute_terms(tokens, bounds)
        metrics["tokens"] = torch.full((), terms.numel(), dtype=torch.float64, device=terms.device)
        if self.kl is not None:
            divergence = self.kl.terms(tokens)
            metrics["reference_kl"] = divergence.detach().double().sum()
            if self.kl.place == "loss":
                terms = terms + self.kl.weight * divergence
        if tokens.entropies is not None:
            metrics["entropy"] = tokens.entropies.detach().double().sum()
        if self.entropy:
            if tokens.entropies is None:
                raise UsageError("trainer.entropy needs the tokens' entropies, and TrainedTokens.entropies is None")
            terms = terms - self.entropy * tokens.entropies
        if prepared.kept is not None:
            terms = torch.where(prepared.kept, terms, torch.zeros_like(terms))
            metrics["rejected_fraction"] = (~prepared.kept).sum().double()
        kept = None if self.count_rejected else prepared.kept
        return self.aggregate(terms, tokens.sequences, kept, totals), metrics

    def _compute_terms(self, tokens: TrainedTokens, bounds: M2Bounds | None) -> _Terms:
        """Return the loss's terms with the correction's weights, and the tokens without rejected ones."""
        if bounds is None and self.loss.func in _BOUNDS:
            raise UsageError(
                "m2po needs the bounds of the whole minibatch: call `Objective.bounds` first and pass its result"
            )
        prepared, weights, metrics = self._prepare(tokens)
        before = prepared.count_changes()
        found = self.loss(prepared) if bounds is None else self.loss(prepared, bounds)
        if changed := [name for name, count in prepared.count_changes().items() if count != before[name]]:
            raise UsageError(
                f"the loss changes {', '.join(f'TrainedTokens.{name}' for name in changed)} in place, but later calls "
                "get the same tensors: let it make new tensors, without functions such as `mul_`, or `*=`"
            )
        terms, measured, rejected = check_loss_terms(found, prepared)
        if weights is not None:
            terms = weights * terms
        return _Terms(prepared.without(rejected), terms, add_metrics(metrics, measured))

    def _prepare(self, tokens: TrainedTokens) -> _Prepared:
        """Return the tokens as input of the loss."""
        seen = tokens
        if self.kl is not None and self.kl.place == "reward":
            cost = cost_to_go(self.kl.terms(tokens).detach(), tokens.sequences)
            seen = replace(seen, advantages=seen.advantages - self.kl.weight * cost)
        if not self.corrections:
            return _Prepared(seen, None, {})
        log_weights = log_weights_of(tokens)
        found = [correct(tokens) for correct in self.corrections]
        for one in found:
            if one.weights is None:
                seen = seen.without(one.rejected)
        weights = None
        left = seen  # Sequence weights use the tokens that the rejecting corrections left.
        for correct, one in zip(self.corrections, found, strict=True):
            if one.weights is not None:
                factors, rejected = one if left is tokens else correct(left)
                seen = seen.without(rejected)
                weights = factors if weights is None or factors is None else weights * factors
        metrics = weight_metrics(log_weights, log_weights.exp() if weights is None else weights)
        metrics["weight_perplexity_ratio"] = perplexity_ratio(tokens).double().sum()
        if weights is not None:
            near = tokens.logprobs if tokens.proximal is None else tokens.proximal
            seen = replace(seen, behaviour_logprobs=near.detach())
        return _Prepared(seen, weights, metrics)

    def _is_unneeded(self, name: str) -> bool:
        tokens, totals = _example()
        bounds = self.bounds(tokens)
        try:
            self.compute_loss_share(replace(tokens, **{name: None}), totals, bounds)  # type: ignore[arg-type]  # each may be None
        except Exception:  # noqa: BLE001 - any error of a user's loss without the field
            return False
        return True


class _Terms(NamedTuple):
    tokens: TrainedTokens
    terms: Tensor
    metrics: dict[str, Tensor]


def objective_of(
    loss: str | Table = "ppo",
    aggregation: str | Table | None = None,
    *,
    correction: str | Table | Sequence[Table] | None = None,
    kl: Table | None = None,
    entropy: float = 0.0,
    count_rejected: bool = False,
) -> Objective:
    """Build an objective from a recipe's settings; the parameters are those of `policy_loss`.

    Raises UsageError for an unknown name or option, or a value out of range, before the first batch.
    """
    found, name = _bind_options("trainer.loss", loss, LOSSES)
    own = OWN_AGGREGATION.get(name, "token_mean")
    aggregate, _ = _bind_options("trainer.aggregation", own if aggregation is None else aggregation, AGGREGATIONS)
    several = [correction] if isinstance(correction, str | Mapping) else (correction or [])
    corrections = [_bind_options("trainer.correction", table, CORRECTIONS) for table in several]
    if kl is not None:
        check_options("trainer.kl", Kl, kl)
    objective = Objective(
        found,
        aggregate,
        tuple(correct for correct, _ in corrections),
        None if kl is None else Kl(**kl),
        entropy,
        count_rejected,
    )
    if not math.isfinite(entropy):
        raise UsageError(f"trainer.entropy: the weight must be finite, got {entropy}")
    tokens, totals = _example()
    # The functions refuse values out of range.
    with _naming_table("trainer.aggregation"):
        aggregate(torch.zeros(2), tokens.sequences, None, totals)
    with _naming_table("trainer.correction"):
        weighing = [named for correct, named in corrections if correct(tokens).weights is not None]
    if len(weighing) > 1:
        raise UsageError(
            f"trainer.correction: only one correction may weigh tokens, got {len(weighing)} ({', '.join(weighing)}); "
            "the others may only reject tokens, as `rejection` and `veto` do"
        )
    if weighing and found.func in (decoupled_ppo, m2po):
        raise UsageError(
            f"trainer.loss: {name} already corrects for the sampling policy, so trainer.correction must not weigh "
            f"tokens, as {weighing[0]} does: take `rejection` or `veto`, which only reject tokens, or leave "
            "trainer.correction out"
        )
    with _naming_table("trainer.loss"):
        share, _ = objective.compute_loss_share(tokens, totals, objective.bounds(tokens))
        if not share.requires_grad:
            raise UsageError("the loss has no gradient: compute it from TrainedTokens.logprobs without `detach`")
    return objective


def _check_finite(tokens: TrainedTokens) -> None:
    for name in ("logprobs", "behaviour_logprobs", "advantages", "proximal", "reference", "entropies"):
        numbers = getattr(tokens, name)
        if numbers is not None and not (finite := numbers.isfinite()).all():
            index = int((~finite).nonzero()[0])
            raise UsageError(f"policy_loss: {name} of token {index} is {numbers[index].item()}, not a finite number")


@contextmanager
def _naming_table(where: str) -> Iterator[None]:
    """Add the name of the table to an error."""
    try:
        yield
    except UsageError as error:  # it says what the setting, or the result of a user's loss, must be
        raise UsageError(f"{where}: {describe_with_location(error)}") from error
    except Exception as error:  # any error of a user's loss
        why = describe_with_location(error)
        raise UsageError(f"{where} failed when Headrace tried it on two example tokens: {why}") from error


def _bind_options(
    where: str, table: str | Table, shipped: Mapping[str, Callable[..., Any]]
) -> tuple[partial[Any], str]:
    options = {"use": table} if isinstance(table, str) else dict(table)
    if "use" not in options:
        raise UsageError(f"{where}: `use` is missing; take one of {', '.join(shipped)}")
    name = options.pop("use")
    function = find_named(where, name, shipped)
    check_options(f"{where}, {name}", function, options)
    for option, value in options.items():
        if isinstance(value, float) and math.isnan(value):
            raise UsageError(f"{where}, {name}: {option} is not a number (nan)")
    return partial(function, **options), name


def _example() -> tuple[TrainedTokens, Totals]:
    """Return two example tokens with all optional fields."""
    names = ("behaviour_logprobs", "advantages", "proximal", "reference", "entropies")
    others = {name: torch.zeros(2) for name in names}
    numbers = torch.zeros(2, dtype=torch.int64)
    tokens = TrainedTokens(torch.zeros(2, requires_grad=True), sequences=numbers, versions=numbers, version=0, **others)
    return tokens, Totals(2, 1, 1)


_BOUNDS: Mapping[Callable[..., Any], Callable[..., M2Bounds]] = {m2po: m2po_bounds}
