"""Input and output of losses: flat vectors over the N trained tokens of a batch, without padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, SupportsFloat, TypeAlias

import torch
from torch import Tensor

from headrace.infra.errors import UsageError

Count: TypeAlias = int | Tensor
"""A whole number, or a scalar that stays on the device."""

MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class TrainedTokens:
    """The trained tokens of whole sequences; float vectors are all float32 or all float64, on one device.

    A sequence without a trained token has no entry here; `Totals.all_sequences` counts it.
    """

    logprobs: Tensor
    """float[N], log pi_theta of each token under the current weights; with gradient."""
    behaviour_logprobs: Tensor
    """float[N], log pi_b, as the engine reported it when it sampled the token."""
    advantages: Tensor
    """float[N]"""
    sequences: Tensor
    """int64[N], the sequence of each token; the tokens of a sequence are adjacent and in order."""
    proximal: Tensor | None = None
    """float[N], log pi_prox under the weights at the start of the version; no gradient."""
    reference: Tensor | None = None
    """float[N], log pi_ref; no gradient."""
    entropies: Tensor | None = None
    """float[N], the entropy of each token's distribution; with gradient if the objective needs it."""
    versions: Tensor | None = None
    """int[N], the weight version that generated each token; -1 if unknown."""
    version: int | None = None
    """The version of `proximal`'s weights: the last version before the one being trained."""
    kept: Tensor | None = None
    """bool[N], False where a correction rejected the token; None keeps all. See `trainers.losses.correction`."""

    def __post_init__(self) -> None:
        """Refuse input that would silently give a wrong loss.

        Raises UsageError for vectors of different lengths, which would be broadcast, and for tokens of a sequence that
        are not adjacent, which would count as several sequences. The second check is made on the CPU only, because
        elsewhere it needs a synchronisation.
        """
        shapes = {name: tuple(one.shape) for name in _VECTORS if (one := getattr(self, name)) is not None}
        if len(set(shapes.values())) != 1 or self.logprobs.ndim != 1:
            raise UsageError(
                f"the vectors of trained tokens must be one-dimensional and of the same length, got shapes {shapes}"
            )
        if self.sequences.device.type == "cpu":
            begun = self.sequences[mark_sequence_begins(self.sequences)].sort().values
            twice = begun[1:][begun[1:] == begun[:-1]]
            if twice.numel():
                raise UsageError(
                    f"the tokens of a sequence must be adjacent; those of sequence {int(twice[0])} are not"
                )

    def count_changes(self) -> dict[str, int]:
        """Return how often each vector was changed in place."""
        vectors = {name: one for name in _VECTORS if (one := getattr(self, name)) is not None}
        return {name: one._version for name, one in vectors.items() if not one.is_inference()}  # noqa: SLF001 - torch has no other

    def part(self, index: Tensor | slice) -> TrainedTokens:
        """Return the tokens at `index` (int64[M], bool[N] or a slice), which must select whole sequences in order."""
        cut = {
            name: getattr(self, name)[index]
            for name in _VECTORS
            if getattr(self, name) is not None  # skip a missing optional vector
        }
        return replace(self, **cut)

    def detach(self) -> TrainedTokens:
        """Return the tokens without gradient."""
        entropies = None if self.entropies is None else self.entropies.detach()
        return replace(self, logprobs=self.logprobs.detach(), entropies=entropies)

    def without(self, rejected: Tensor | None) -> TrainedTokens:
        """Return the tokens with bool[N] `rejected` removed from `kept`; None changes nothing."""
        if rejected is None:
            return self
        return replace(self, kept=~rejected if self.kept is None else self.kept & ~rejected)


_VECTORS = (
    "logprobs",
    "behaviour_logprobs",
    "advantages",
    "sequences",
    "proximal",
    "reference",
    "entropies",
    "versions",
    "kept",
)


class TokenLoss(NamedTuple):
    """The result of a loss function."""

    terms: Tensor
    """float[N], terms to minimise; an aggregation turns them into a scalar."""
    metrics: Mapping[str, Any]
    """Numbers: sums over the tokens, or the largest value if the name ends in `_max`."""
    rejected: Tensor | None = None
    """bool[N], tokens that the loss rejects (not those that a clip leaves without gradient); None: none."""


OF_THE_LEARNER = frozenset({"loss", "tokens"})
"""Metric names that no loss may use, because the objective uses them."""


def check_loss_terms(found: Any, tokens: TrainedTokens) -> tuple[Tensor, dict[str, Tensor], Tensor | None]:
    """Return terms, metrics as float64 scalars, and rejected tokens from a loss function's result.

    A metric may be any number, also with gradient. A result of terms alone has no metrics. Raises UsageError for a
    wrong result.
    """
    given = TokenLoss(found, {}) if isinstance(found, Tensor) else found
    if not isinstance(given, TokenLoss):
        raise UsageError(
            f"a loss must return TokenLoss(terms, metrics), or the tensor of terms alone; got {type(given).__name__}"
        )
    if not isinstance(given.terms, Tensor) or given.terms.shape != tokens.logprobs.shape:
        got = f"shape {list(given.terms.shape)}" if isinstance(given.terms, Tensor) else type(given.terms).__name__
        raise UsageError(
            f"the terms of a loss must be a tensor of one number for each of the {tokens.logprobs.numel()} tokens; got "
            f"{got}"
        )
    metrics = {name: _metric(name, value, given.terms) for name, value in given.metrics.items()}
    return given.terms, metrics, given.rejected


def _metric(name: str, value: Any, terms: Tensor) -> Tensor:
    if name in OF_THE_LEARNER:
        raise UsageError(f"metric {name!r} of the loss has a name that the learner uses itself: choose another name")
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.detach().double().reshape(())
    if isinstance(value, SupportsFloat) and not isinstance(value, Tensor):
        return torch.full((), float(value), dtype=torch.float64, device=terms.device)
    what = f"a tensor of {list(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__} {value!r:.60}"
    raise UsageError(f"metric {name!r} of the loss must be one number, a sum over tokens, got {what}")


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over a whole minibatch: the denominators of aggregations for all its micro-batches.

    `a + b` are the totals of two parts without a common sequence, such as those of two ranks.
    """

    tokens: Count
    """Trained tokens, without rejected ones unless `count_rejected` is set."""
    sequences: Count
    """Sequences with at least one of these tokens."""
    all_sequences: Count
    """All sequences, also those without a trained token."""

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.tokens + other.tokens,
            self.sequences + other.sequences,
            self.all_sequences + other.all_sequences,
        )


def totals_of(sequences: Tensor, kept: Tensor | None = None, all_sequences: Count | None = None) -> Totals:
    """Return the totals of the bool[N] `kept` tokens in int64[N] `sequences`.

    Args:
        sequences: The sequence of each token, as in TrainedTokens.
        kept: Tokens that count; None: all.
        all_sequences: Number of sequences, if some have no trained token; None: those in `sequences`.
    """
    begins = mark_sequence_begins(sequences)
    there = begins.sum()
    every = there if all_sequences is None else all_sequences
    if kept is None:
        return Totals(sequences.numel(), there, every)
    alive = torch.zeros_like(sequences).index_add_(0, number_sequences(sequences), kept.to(sequences.dtype))
    return Totals(kept.sum(), (alive > 0).sum(), every)


def mark_sequence_begins(sequences: Tensor) -> Tensor:
    """Return bool[N]: True at the first token of each sequence."""
    begins = torch.ones_like(sequences, dtype=torch.bool)
    begins[1:] = sequences[1:] != sequences[:-1]
    return begins


def number_sequences(sequences: Tensor) -> Tensor:
    """Return int64[N]: 0 for the tokens of the first sequence present, 1 for those of the second, ..."""
    return mark_sequence_begins(sequences).cumsum(0) - 1


def sum_sequences(values: Tensor, sequences: Tensor) -> Tensor:
    """Return float[N]: entry k is the sum of float[N] `values` over the k-th sequence; entries after the last are 0.

    It has one entry per token, not per sequence, so that its size is known without a synchronisation.
    """
    return torch.zeros_like(values).index_add(0, number_sequences(sequences), values)


def broadcast_sequence_sum(values: Tensor, tokens: TrainedTokens) -> Tensor:
    """Return float[N]: the sum of float[N] `values` over the kept tokens of each token's sequence."""
    counted = values if tokens.kept is None else torch.where(tokens.kept, values, torch.zeros_like(values))
    return sum_sequences(counted, tokens.sequences)[number_sequences(tokens.sequences)]


def broadcast_sequence_mean(values: Tensor, tokens: TrainedTokens) -> Tensor:
    """Return float[N]: the mean of float[N] `values` over the kept tokens of each token's sequence; 0 if none."""
    return broadcast_sequence_sum(values, tokens) / broadcast_sequence_sum(torch.ones_like(values), tokens).clamp(min=1)


def broadcast_sequence_any(flags: Tensor, tokens: TrainedTokens) -> Tensor:
    """Return bool[N]: whether any kept token of each token's sequence has its flag in bool[N] `flags`."""
    return broadcast_sequence_sum(flags.to(tokens.behaviour_logprobs.dtype), tokens) > 0


def log_ratio(logprobs: Tensor, behaviour: Tensor) -> Tensor:
    """Return log pi_theta - log pi_b, clamped to +-20 (no gradient beyond), so that its exponential stays finite."""
    delta = logprobs - behaviour
    bounded = delta.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return torch.where(delta.abs() > MAX_LOG_RATIO, bounded, delta)
