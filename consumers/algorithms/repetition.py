"""Finds generations that repeat themselves."""

from __future__ import annotations

import math

import numpy as np

from headrace.consumers.algorithms.degenerate import Flagging, iterate_generated_stretches
from headrace.infra.recipe.ranges import at_least
from headrace.schemas.records import Sequence, Trajectory


class Repetition(Flagging):
    """Reject a trajectory in which `run` consecutive generated tokens each have probability > `probability`.

    A token that was not generated breaks a run. Flagged trajectories are left out of the loss but still count in the
    group's statistics; with `monitor = true` they are only counted. Source: MiniMax-M1 (arXiv 2506.13585, section 3.2).
    """

    def __init__(self, run: int = 3000, probability: float = 0.99, *, monitor: bool = False) -> None:
        at_least(1, run=run)
        if not 0 < probability < 1:
            raise ValueError(f"probability must be between 0 and 1; got {probability}")
        super().__init__("repetition", monitor=monitor)
        self._run = run
        self._sure = float(np.float32(math.log(probability)))
        """The bound, rounded to float32 as in a comparison with a float32 array."""

    def find_fault(self, trajectory: Trajectory) -> str:
        """Describe the longest run if it is long enough; else return an empty text."""
        longest = 0
        for sequence in trajectory.sequences:
            if sequence.ids.size >= self._run:
                longest = max(longest, self._longest(sequence))
        return f"{longest} consecutive tokens of probability above {math.exp(self._sure):.4g}" if longest else ""

    def _longest(self, sequence: Sequence) -> int:
        """Return the length of the longest run of confident generated tokens; 0 if none reaches `run`."""
        longest = 0
        for logprobs in iterate_generated_stretches(sequence, sequence.logprobs):
            # A run of this length contains at least one of every `run`-th token, so most stretches need no closer look.
            if not [logprob for logprob in logprobs[self._run - 1 :: self._run].tolist() if logprob > self._sure]:
                continue
            sure = logprobs > self._sure
            if np.count_nonzero(sure) >= self._run:
                breaks = np.flatnonzero(~sure)
                longest = max(longest, int(np.diff(breaks, prepend=-1, append=logprobs.size).max()) - 1)
        return longest if longest >= self._run else 0
