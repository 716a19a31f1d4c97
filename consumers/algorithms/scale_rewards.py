"""Shifts, scales and clips rewards."""

from __future__ import annotations

import math
from collections.abc import Iterable

from headrace.consumers.algorithms.contract import Candidate, Keep, Result, Stateless
from headrace.infra.recipe.ranges import at_least, finite


class ScaleRewards(Stateless):
    """Replace every reward r by clip((r + bias) * scale, -clip, clip); `clip = 0` does not clip.

    Source: reward settings of AstraFlow and AReaL.
    """

    def __init__(self, bias: float = 0.0, scale: float = 1.0, clip: float = 20.0) -> None:
        finite(bias=bias, scale=scale)
        at_least(0, clip=clip)
        if scale == 0:
            raise ValueError("scale must not be 0, as all rewards would be equal")
        self._bias = bias
        self._scale = scale
        self._clip = clip or math.inf

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:  # noqa: ARG002 - the protocol's
        """Shape the rewards of all members."""
        members = candidate.rewards[: len(candidate.group.trajectories)]
        return [Keep(candidate.with_shaped_rewards(self._transform(reward) for reward in members))]

    def _transform(self, reward: float) -> float:
        # A NaN reward does not count and stays NaN, because min and max return their first argument then.
        return max(min((reward + self._bias) * self._scale, self._clip), -self._clip)
