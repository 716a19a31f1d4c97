"""A data algorithm."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.consumers.algorithms.contract import Candidate, Keep, Result, Stateless


class Rested(Stateless):
    """Keep every group."""

    def __init__(self, versions: int = 1) -> None:
        self.versions = versions

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:
        return [Keep(candidate)]
