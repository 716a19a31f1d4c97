"""A data algorithm that drops every group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.consumers.algorithms.contract import Candidate, Drop, Result


class Unwanted:
    """Drops every group."""

    def process(self, candidate: Candidate, clock: int) -> Iterable[Result]:
        """Drop it."""
        return [Drop("unwanted")]

    def snapshot(self) -> dict[str, Any]:
        """Return nothing: it remembers nothing."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Remember nothing."""
