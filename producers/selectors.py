"""Task selectors: which problems are worth a rollout.

A selector is built as `Selector(seed=…, **settings)`, one per workflow. It says *now* or *not now* to a problem and
learns from every finished group, also from those that a filter dropped. Its state, random generator included, is part
of the feeder's, so a run can be repeated. Source of the interface: arXiv 2506.02177 (GRESO).
"""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import Any, Protocol

from envs.contract import Problem
from infra.errors import UsageError
from infra.settings import Use
from schemas.records import Outcome

MOST_REJECTIONS = 256
"""So many in a row, and the next problem is taken unasked: no selector can starve a run."""


class Selector(Protocol):
    """Decides before a rollout. What it raises ends the feeder: no task is accepted silently."""

    def select(self, problem: Problem) -> bool:
        """Tell whether the problem is worth a rollout now."""

    def observe(self, outcome: Outcome) -> None:
        """Learn from a finished group of the workflow, kept or dropped."""

    def on_version(self, version: int) -> None:
        """Learn that one of the workflow's policies has a version newer than any before."""

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON has it."""

    def restore(self, state: dict[str, Any]) -> None:
        """Take the state that `snapshot` returned."""


class AcceptAll:
    """Every problem is worth a rollout."""

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


SELECTORS = {"accept_all": "producers.selectors:AcceptAll"}
"""Shipped selectors by name."""


def load_selector(use: Use, seed: int) -> Selector:
    """Build the selector that a recipe names, by its name or as `package.module:Name`. Raises UsageError."""
    where = SELECTORS.get(use.use, use.use)
    module, _, attribute = where.partition(":")
    if not attribute:
        near = get_close_matches(use.use, SELECTORS, 1, 0)
        raise UsageError(
            f"feed.selector names {use.use!r}, which is none of {', '.join(SELECTORS)}: did you mean {near[0]!r}? One "
            "of your own is named as package.module:Name"
        )
    try:
        build = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"feed.selector names {use.use!r}, which cannot be imported: {error}") from error
    try:
        selector: Selector = build(seed=seed, **use.settings)
    except (TypeError, ValueError) as error:
        raise UsageError(f"feed.selector {use.use!r} refuses its settings {use.settings}: {error}") from error
    return selector
