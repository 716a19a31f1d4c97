"""Punishes trajectories that are too long, or leaves them out."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.consumers.algorithms.contract import Candidate, Keep, Rejection, Result, Stateless, generated_lengths
from headrace.consumers.algorithms.sizes import keep_or_drop
from headrace.infra.recipe.ranges import above, at_least, one_of


class Overlong(Stateless):
    """DAPO's soft overlong punishment (arXiv 2503.14476), added to a trajectory's reward.

    With L generated tokens, `limit` L_max, `buffer` L_c (a fifth of the limit unless given) and `factor` f, it is 0 up
    to L_max - L_c, then f (L_max - L_c - L) / L_c, and -f beyond L_max. L_c = 0 gives a step at L_max. With `action =
    "mask"` nothing is added: trajectories longer than L_max are left out of the loss but still count in the group's
    statistics.
    """

    def __init__(self, limit: int, buffer: int = -1, factor: float = 1.0, action: str = "shape") -> None:
        at_least(1, limit=limit)
        at_least(-1, buffer=buffer)
        above(0, factor=factor)
        one_of(("shape", "mask"), action=action)
        if buffer > limit:
            raise ValueError(f"buffer must be at most limit, which is {limit}; got {buffer}")
        self._limit = limit
        self._buffer = limit // 5 if buffer < 0 else buffer
        self._factor = factor
        self._masks = action == "mask"

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:  # noqa: ARG002 - the protocol's
        """Compare the length of every member with the limit."""
        lengths = generated_lengths(candidate.group)
        if max(lengths, default=0) <= (self._limit if self._masks else self._limit - self._buffer):
            return [Keep(candidate)]
        if self._masks:
            why = f"longer than {self._limit} generated tokens"
            rejections = [Rejection(index, "overlong", why) for index in candidate.kept if lengths[index] > self._limit]
            return [keep_or_drop(candidate.without(rejections), "overlong")]
        pairs = zip(candidate.rewards, lengths, strict=False)
        return [Keep(candidate.with_shaped_rewards(reward + self.penalty(length) for reward, length in pairs))]

    def penalty(self, length: int) -> float:
        """Return the addition to the reward of a trajectory with `length` generated tokens."""
        free = self._limit - self._buffer
        if length <= free:
            return 0.0
        return -self._factor if length > self._limit else self._factor * (free - length) / self._buffer
