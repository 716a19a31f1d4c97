"""Selectors by their recipe names, and the combination of several selectors into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.envs.contract import Problem
from headrace.infra.errors import UsageError
from headrace.infra.own_frames import read_error_text
from headrace.infra.recipe.named import check_settings, find_named
from headrace.infra.recipe.settings import Feed
from headrace.infra.recipe.table import Named
from headrace.producers.feed.selectors.contract import ChoosesTier, KnowsSize, Selector
from headrace.schemas.records import Outcome

SELECTORS = {
    "accept_all": "headrace.producers.feed.selectors.contract:AcceptAll",
    "filter_solved": "headrace.producers.feed.selectors.filter_solved:FilterSolved",
    "greso": "headrace.producers.feed.selectors.greso:Greso",
    "dots": "headrace.producers.feed.selectors.dots:Dots",
    "pools": "headrace.producers.feed.selectors.pools:Pools",
    "tiers": "headrace.producers.feed.selectors.tiers:Tiers",
}
"""Shipped selectors by name."""


class AllOf:
    """Combines several selectors: a problem must be accepted by each; they are asked in order until one rejects.

    The state is stored by selector name. After a change of the recipe, selectors that stay keep their state, and new
    selectors start empty. Raises UsageError when two of them choose the tier.
    """

    def __init__(self, selectors: Mapping[str, Selector]) -> None:
        self._selectors = dict(selectors)
        self._choosing = [name for name, selector in self._selectors.items() if isinstance(selector, ChoosesTier)]
        if len(self._choosing) > 1:
            raise UsageError(
                f"feed.selector names {' and '.join(self._choosing)}, and each of them chooses the tier of the next "
                "task: keep only one of them in the recipe"
            )

    @property
    def chooser(self) -> str:
        """Name of the selector that chooses the tier; empty if none does."""
        return next(iter(self._choosing), "")

    def choose(self, tiers: Sequence[str]) -> str:
        """Return the tier that a selector chooses; empty if no selector chooses tiers."""
        found = self._selectors.get(self.chooser)
        return found.choose(tiers) if isinstance(found, ChoosesTier) else ""

    def select(self, problem: Problem) -> bool:
        """Ask one after the other."""
        return all(selector.select(problem) for selector in self._selectors.values())

    def observe(self, outcome: Outcome) -> None:
        """Let each learn."""
        for selector in self._selectors.values():
            selector.observe(outcome)

    def on_version(self, version: int) -> None:
        """Let each learn."""
        for selector in self._selectors.values():
            selector.on_version(version)

    def on_size(self, size: int | None) -> None:
        """Pass the size on to selectors that count passes."""
        for selector in self._selectors.values():
            if isinstance(selector, KnowsSize):
                selector.on_size(size)

    def snapshot(self) -> dict[str, Any]:
        """Return their states by name."""
        return {name: selector.snapshot() for name, selector in self._selectors.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state of each selector."""
        for name, selector in self._selectors.items():
            if name in state:
                selector.restore(state[name])


def load_selectors(named: Sequence[Named], seed: int) -> AllOf:
    """Build the selectors that a recipe names, combined into one. Raises UsageError."""
    names = [one.use for one in named]
    if len(set(names)) < len(names):
        raise UsageError(f"feed.selector names {', '.join(names)}: name each selector only once in the recipe")
    return AllOf({one.use: load_selector(one, seed) for one in named})


def load_feed_selectors(feed: Feed, seed: int) -> AllOf:
    """Build the selectors of a recipe's feed as one. Raises UsageError, also if two keys choose the tier."""
    selectors = load_selectors(feed.selector, seed)
    if selectors.chooser and feed.raise_tier:
        raise UsageError(
            f"feed.raise_tier and the selector {selectors.chooser} of feed.selector both choose the tier of the next "
            "task: take one of them out of the recipe"
        )
    return selectors


def load_selector(named: Named, seed: int) -> Selector:
    """Build one selector, by its name or as `package.module:Name`. Raises UsageError."""
    build = find_named("feed.selector", named.use, SELECTORS)
    try:
        check_settings(f"feed.selector, {named.use}", build, named.settings, elsewhere=("seed",))
        selector: Selector = build(seed=seed, **named.settings)
    except (TypeError, ValueError) as error:
        why = read_error_text(error)
        raise UsageError(f"feed.selector {named.use!r} refuses its settings {named.settings}: {why}") from error
    return selector
