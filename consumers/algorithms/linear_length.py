"""Punish length where a task is mostly solved."""

from __future__ import annotations

from collections.abc import Iterable

from consumers.algorithms.contract import Candidate, Keep, Result, Stateless, generated_lengths
from consumers.algorithms.group_statistics import mean_and_deviation
from consumers.algorithms.ranges import at_least, finite
from schemas.records import Trajectory


class LinearLength(Stateless):
    """r_i - mu (output o_i / max o + prompt p_i / max p + turns k_i / max k), then less the mean of these.

    o are a trajectory's generated tokens, p its other ones, k its turns; mu is the group's mean reward, so that length
    counts only as far as a task is solved. `centre = false` leaves the mean in. Source: prime-rl's length penalty.
    """

    def __init__(self, output: float = 0.25, prompt: float = 0.1, turns: float = 0.1, *, centre: bool = True) -> None:
        at_least(0, output=output, prompt=prompt, turns=turns)
        finite(output=output, prompt=prompt, turns=turns)
        self._factors = (output, prompt, turns)
        self._centre = centre

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:  # noqa: ARG002 - the protocol's
        """Shape the rewards of all members that count."""
        members = candidate.group.trajectories
        mean, _ = mean_and_deviation(candidate.rewards)
        lengths = zip(
            generated_lengths(candidate.group), map(_prompt_tokens, members), map(_turns, members), strict=True
        )
        rows = list(lengths)
        # What validation took out is no yardstick: its reward is NaN.
        counted = [row for row, reward in zip(rows, candidate.rewards, strict=False) if reward == reward]  # noqa: PLR0124
        largest = [max(column) or 1 for column in zip(*counted, strict=True)] or [1, 1, 1]
        weights = [factor / most for factor, most in zip(self._factors, largest, strict=True)]
        shaped = candidate.shaped(
            reward - mean * sum(weight * length for weight, length in zip(weights, row, strict=True))
            for reward, row in zip(candidate.rewards, rows, strict=False)
        )
        if not self._centre:
            return [Keep(shaped)]
        centre, _ = mean_and_deviation(shaped.rewards)
        return [Keep(shaped.shaped(reward - centre for reward in shaped.rewards[: len(members)]))]


def _prompt_tokens(trajectory: Trajectory) -> int:
    return sum(s.length for sequence in trajectory.sequences for s in sequence.spans if s.kind != "generated")


def _turns(trajectory: Trajectory) -> int:
    """Return the generations that are told apart by turn, sequence by sequence."""
    turns = {
        (number, span.turn)
        for number, sequence in enumerate(trajectory.sequences)
        for span in sequence.spans
        if span.kind == "generated" and span.length
    }
    return len(turns)
