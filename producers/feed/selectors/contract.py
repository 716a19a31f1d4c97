"""The interface of task selectors, which decide which problems are worth a rollout.

A selector is built as `Selector(seed=…, **settings)`, one per workflow. It answers *now* or *not now* to a problem and
learns from every finished group, also from groups that a filter dropped. Its state, including its random numbers, is
part of the feeder's state, so a run can be repeated. Source of the interface: arXiv 2506.02177 (GRESO).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from headrace.envs.contract import Problem
from headrace.schemas.records import Outcome

MOST_REJECTIONS = 256
"""After so many rejections in a row the feeder takes the next problem anyway: no selector can starve a run."""


class Selector(Protocol):
    """Decides before a rollout. An exception ends the feeder: no task is accepted silently."""

    def select(self, problem: Problem) -> bool:
        """Return whether the problem is worth a rollout now."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from a finished group of the workflow, kept or dropped."""

    def on_version(self, version: int) -> None:
        """Take in that one of the workflow's policies has a newer version."""

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON. Keep it small: it is written with every turn's tasks."""

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state that `snapshot` returned."""


@runtime_checkable
class ChoosesTier(Protocol):
    """A selector that also chooses the tier of the next problem."""

    def choose(self, tiers: Sequence[str]) -> str:
        """Return one of the recipe's tiers, which come easiest first; an empty text for the environment's own order."""


@runtime_checkable
class KnowsSize(Protocol):
    """A selector that counts passes over the data set."""

    def on_size(self, size: int | None) -> None:
        """Take in the number of training problems (None: endless), at the start and when the tier is raised."""


class AcceptAll:
    """Accepts every problem. Also the base class of selectors that learn only from some of the events."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def select(self, problem: Problem) -> bool:  # noqa: ARG002
        """Return True."""
        return True

    def observe(self, outcome: Outcome) -> None:
        """Learn nothing."""

    def on_version(self, version: int) -> None:
        """Learn nothing."""

    def snapshot(self) -> dict[str, Any]:
        """Return nothing to remember."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Remember nothing."""
