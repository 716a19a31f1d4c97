"""What changes the number of a pool's workers: two methods, for the processes of this machine or for Kubernetes."""

from __future__ import annotations

from typing import Protocol

from headrace.infra.embedded.data_folder import UP, DataFolder
from headrace.infra.embedded.scale_files import AskedCount, ask_for, read_counts
from headrace.infra.errors import HeadraceError, Unavailable
from headrace.infra.recipe.pools import count_pools
from headrace.infra.recipe.settings import Recipe


class ScalerAway(Unavailable):
    """What starts and ends workers does not answer now."""


class ScalerRefused(HeadraceError):
    """What starts and ends workers refuses: a missing right, a missing Deployment, a setting."""


class Scaler(Protocol):
    """Knows and changes how many workers a pool should have. Both methods raise ScalerAway and ScalerRefused."""

    name: str
    """What it is, for decisions and messages."""

    def read_count(self, pool: str) -> int:
        """Return how many workers a pool should have now, whoever has asked for them."""
        ...

    def set_count(self, pool: str, count: int) -> None:
        """Ask for a number of workers. It need not wait for them."""
        ...


class LocalScaler:
    """The workers of this machine's `headrace up`, which reads the files that `headrace scale` writes, too.

    Args:
        folder: Data folder of the run.
        run_id: The run.
        recipe: Its newest recipe.
    """

    def __init__(self, folder: DataFolder, run_id: str, recipe: Recipe) -> None:
        self._folder, self._run_id, self._in_recipe = folder, run_id, count_pools(recipe)
        self.name = f"up {folder.root}"

    def read_count(self, pool: str) -> int:
        """See `Scaler`."""
        if (holder := self._folder.find_holder()) is None or holder[1] != UP:
            raise ScalerAway(
                f"no `headrace up` runs the run in {self._folder.root} now: start it by `headrace up RECIPE`"
            )
        try:
            return read_counts(self._folder, self._run_id, self._in_recipe)[pool]
        except (OSError, ValueError) as error:
            raise ScalerRefused(
                f"the number of {pool} cannot be read ({error}): give `headrace scale rollout=N`, which writes it anew"
            ) from error

    def set_count(self, pool: str, count: int) -> None:
        """See `Scaler`."""
        try:
            ask_for(self._folder, pool, AskedCount(self._run_id, count, self._in_recipe[pool]))
        except OSError as error:
            raise ScalerRefused(f"{self._folder.scale} cannot be written: {error}") from error
