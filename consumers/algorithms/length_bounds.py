"""Removes trajectories that are too short or too long."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.consumers.algorithms.contract import Candidate, Keep, Rejection, Result, Stateless, generated_lengths
from headrace.consumers.algorithms.sizes import keep_or_drop
from headrace.infra.recipe.ranges import at_least


class LengthBounds(Stateless):
    """Keep trajectories of `shortest` to `longest` generated tokens, both included; statistics are over the kept ones.

    A group with fewer than two left is dropped. This biases training: look in `outcomes` at what it removes.
    """

    def __init__(self, shortest: int = 0, longest: int = 0) -> None:
        at_least(0, shortest=shortest, longest=longest)
        if not shortest and not longest:
            raise ValueError(
                "shortest or longest, numbers of generated tokens, must be above 0; both are 0, so there is no bound"
            )
        if longest and longest < shortest:
            raise ValueError(f"longest must be at least shortest, which is {shortest}; got {longest}")
        self._shortest = shortest
        self._longest = longest

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:  # noqa: ARG002 - the protocol's
        """Compare every kept trajectory with the bounds."""
        lengths = generated_lengths(candidate.group)
        rejections = [r for index in candidate.kept if (r := self._rejection(index, lengths[index]))]
        if not rejections:
            return [Keep(candidate)]
        return [keep_or_drop(candidate.without(rejections, counted=False), "length")]

    def _rejection(self, index: int, length: int) -> Rejection | None:
        if length < self._shortest:
            return Rejection(index, "too_short", f"{length} generated tokens, shortest {self._shortest}")
        if self._longest and length > self._longest:
            return Rejection(index, "too_long", f"{length} generated tokens, longest {self._longest}")
        return None
