"""Success rates over repeated samples of a problem."""

from __future__ import annotations

import math
from collections.abc import Iterable


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Return the unbiased estimate of the probability that one of k samples is right: 1 - C(n-c, k) / C(n, k).

    Source: Chen et al. (arXiv 2107.03374). Raises ValueError unless 0 <= right <= samples and 1 <= k <= samples.
    """
    if not 0 <= right <= samples or not 1 <= k <= samples:
        raise ValueError(
            f"pass@{k} needs 0 <= right <= samples and 1 <= k <= samples; got right = {right}, samples = {samples}"
        )
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def mean_pass_at_k(counts: Iterable[tuple[int, int]], k: int) -> float:
    """Average pass@k over problems, each (samples, right). Raises ValueError without problems."""
    estimates = [pass_at_k(samples, right, k) for samples, right in counts]
    if not estimates:
        raise ValueError(f"the mean of pass@{k} needs at least one problem; got none")
    return math.fsum(estimates) / len(estimates)


def avg_at_k(counts: Iterable[tuple[int, int]]) -> float:
    """Average the share of right samples over problems, each (samples, right), with equal weights.

    Raises ValueError without problems, or for a problem without samples.
    """
    return mean_pass_at_k(counts, 1)
