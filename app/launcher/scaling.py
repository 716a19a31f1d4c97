"""How many workers and curators `headrace up` runs: as many as the recipe says, until `headrace scale` asks for others.

A number that was asked also holds when the run is resumed, until the recipe has another number.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.embedded.scale_files import forget_outdated, read_counts
from headrace.infra.recipe.pools import count_pools, describe_change
from headrace.infra.recipe.settings import Recipe


class Scaling:
    """The numbers that hold for one `headrace up`."""

    def __init__(self, recipe: Recipe, folder: DataFolder) -> None:
        self._recipe, self._folder = recipe, folder
        self.counts: Mapping[str, int] = count_pools(recipe)
        """Pool to its number of processes."""

    def begin(self, run_id: str) -> list[str]:
        """Take in what was asked before this start; return a sentence for each pool that differs from the recipe."""
        with suppress(OSError, ValueError):
            forget_outdated(self._folder, run_id, self.counts)
        return [f"as `headrace scale` asked, {words}" for words in self.follow(run_id)]

    def follow(self, run_id: str) -> list[str]:
        """Take in what was asked since; return a sentence for each pool that changes.

        A file that cannot be read changes nothing.
        """
        before = self.counts
        with suppress(OSError, ValueError):
            self.counts = read_counts(self._folder, run_id, count_pools(self._recipe))
        changed = [pool for pool, count in self.counts.items() if count != before[pool]]
        return [describe_change(self._recipe, pool, before[pool], self.counts[pool]) for pool in changed]
