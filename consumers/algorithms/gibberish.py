"""Finds generations that became gibberish."""

from __future__ import annotations

import math

import numpy as np

from headrace.consumers.algorithms.degenerate import Flagging, iterate_generated_stretches
from headrace.infra.recipe.ranges import at_least, finite
from headrace.schemas.records import Trajectory


class Gibberish(Flagging):
    """Reject a trajectory with a generated token that is both rare and unlikely.

    Rare: an id above `rare_id`. Unlikely: a log-probability below -log(`vocabulary`) - `offset`. Flagged trajectories
        are left out of the loss but still count in the group's statistics; with `monitor = true` they are only counted.
        Source: arXiv 2510.02387, section 5.2.
    """

    def __init__(self, vocabulary: int, rare_id: int = 100_000, offset: float = 2.0, *, monitor: bool = False) -> None:
        at_least(2, vocabulary=vocabulary)
        at_least(0, rare_id=rare_id)
        finite(offset=offset)
        if rare_id >= vocabulary - 1:
            raise ValueError(
                f"rare_id must be below {vocabulary - 1}, the last id of a vocabulary of {vocabulary}; got {rare_id}"
            )
        super().__init__("gibberish", monitor=monitor)
        self._rare_id = rare_id
        self._unlikely = -math.log(vocabulary) - offset

    def find_fault(self, trajectory: Trajectory) -> str:
        """Return how many tokens are rare and unlikely, or an empty text."""
        count = 0
        for sequence in trajectory.sequences:
            if not sequence.logprobs.size or sequence.logprobs.min() >= self._unlikely:
                continue
            stretches = (
                iterate_generated_stretches(sequence, sequence.ids),
                iterate_generated_stretches(sequence, sequence.logprobs),
            )
            for ids, logprobs in zip(*stretches, strict=True):
                count += int(np.count_nonzero((ids > self._rare_id) & (logprobs < self._unlikely)))
        if not count:
            return ""
        return f"tokens of an id above {self._rare_id} and a log-probability below {self._unlikely:.4g}: {count}"
