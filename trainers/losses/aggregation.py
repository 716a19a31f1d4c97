"""Aggregations of tokens' loss terms into one scalar.

Every function takes terms float[N], sequences int64[N] (as in TrainedTokens), optionally bool[N] `kept`, and `Totals`
of the whole minibatch; it returns this part's share of the loss. The shares add up to the same gradient however the
sequences are cut into micro-batches, unlike means of micro-batch means. Without totals, the tokens are the whole
minibatch. Terms of tokens that are not kept must be 0, as `trainers.losses.objective` sets them. No denominator is 0.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from headrace.infra.errors import UsageError
from headrace.trainers.losses.tokens import Count, Totals, sum_sequences, totals_of


def token_mean(terms: Tensor, sequences: Tensor, kept: Tensor | None = None, totals: Totals | None = None) -> Tensor:
    """Sum of all terms / number of tokens (DAPO, arXiv 2503.14476): every token has the same weight."""
    totals = totals or totals_of(sequences, kept)
    return terms.sum() / _clamp_to_one(totals.tokens)


def sequence_mean(terms: Tensor, sequences: Tensor, kept: Tensor | None = None, totals: Totals | None = None) -> Tensor:
    """Mean over sequences of the mean over each sequence's tokens (GRPO, arXiv 2402.03300).

    Sequences without a kept token are left out of the mean.
    """
    totals = totals or totals_of(sequences, kept)
    counted = terms.new_ones(terms.shape) if kept is None else kept.to(terms.dtype)
    lengths = sum_sequences(counted, sequences).clamp(min=1)
    return (sum_sequences(terms, sequences) / lengths).sum() / _clamp_to_one(totals.sequences)


def sequence_sum(terms: Tensor, sequences: Tensor, kept: Tensor | None = None, totals: Totals | None = None) -> Tensor:
    """Mean over sequences of each sequence's sum; sequences without a trained token count as 0."""
    totals = totals or totals_of(sequences, kept)
    return terms.sum() / _clamp_to_one(totals.all_sequences)


def constant(
    terms: Tensor,
    sequences: Tensor,
    kept: Tensor | None = None,
    totals: Totals | None = None,
    *,
    length: int,
) -> Tensor:
    """`sequence_sum` / length (Dr. GRPO, arXiv 2503.20783): short sequences do not get more weight.

    Args:
        terms: float[N].
        sequences: int64[N].
        kept: bool[N].
        totals: Totals of the whole minibatch.
        length: Most tokens that a sequence can have, or any other constant.
    """
    if length < 1:
        raise UsageError(f"length must be at least 1, got {length}")
    return sequence_sum(terms, sequences, kept, totals) / length


def _clamp_to_one(count: Count) -> Count:
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)


AGGREGATIONS: dict[str, Callable[..., Tensor]] = {
    "token_mean": token_mean,
    "sequence_mean": sequence_mean,
    "sequence_sum": sequence_sum,
    "constant": constant,
}
