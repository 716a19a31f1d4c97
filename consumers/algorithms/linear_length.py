"""Punishes length in tasks that are mostly solved."""

from __future__ import annotations

import math
from collections.abc import Iterable

from headrace.consumers.algorithms.contract import Candidate, Keep, Result, Stateless
from headrace.consumers.algorithms.group_statistics import mean_and_deviation
from headrace.infra.recipe.ranges import at_least
from headrace.schemas.records import Trajectory


class LinearLength(Stateless):
    """Make r_i - mu (output o_i / max o + prompt p_i / max p + turns k_i / max k), minus the mean of these values.

    o is a trajectory's number of generated tokens, p of other tokens, k of turns. mu is the group's mean reward, so
    length matters only as far as a task is solved. Failed episodes that count have no length, and are centred with the
    others; `centre = false` does not subtract the mean. Source: prime-rl's length penalty.
    """

    def __init__(self, output: float = 0.25, prompt: float = 0.1, turns: float = 0.1, *, centre: bool = True) -> None:
        at_least(0, output=output, prompt=prompt, turns=turns)
        self._output = output
        self._prompt = prompt
        self._turns = turns
        self._centre = centre

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:  # noqa: ARG002 - the protocol's
        """Shape the rewards of all members that count."""
        members = candidate.group.trajectories
        mean, _ = mean_and_deviation(candidate.rewards)
        rows = [_count_tokens_and_turns(member) for member in members]
        # Trajectories that validation rejected (reward NaN) are left out of the maxima.
        counted = [row for row, reward in zip(rows, candidate.rewards, strict=False) if not math.isnan(reward)]
        if not counted:
            return [Keep(candidate)]
        most_o, most_p, most_k = (max(column) or 1 for column in zip(*counted, strict=True))
        by_o, by_p, by_k = self._output / most_o, self._prompt / most_p, self._turns / most_k
        pairs = zip(candidate.rewards, rows, strict=False)
        shaped = candidate.with_shaped_rewards(
            [reward - mean * (by_o * o + by_p * p + by_k * k) for reward, (o, p, k) in pairs]
        )
        if not self._centre:
            return [Keep(shaped)]
        centre, _ = mean_and_deviation(shaped.rewards)
        return [Keep(shaped.with_rewards(tuple([reward - centre for reward in shaped.rewards])))]


def _count_tokens_and_turns(trajectory: Trajectory) -> tuple[int, int, int]:
    """Return three sums over the sequences: generated tokens, other tokens, turns."""
    generated = others = turns = 0
    for sequence in trajectory.sequences:
        acted = set()
        for span in sequence.spans:
            if span.kind != "generated":
                others += span.length
            elif span.length:
                generated += span.length
                acted.add(span.turn)
        turns += len(acted)
    return generated, others, turns
