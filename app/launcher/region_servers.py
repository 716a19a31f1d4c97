"""The servers of a run's regions, for `headrace up`: each region's Kafka and store, embedded or named by the recipe."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.embedded.servers import Servers
from headrace.infra.kafka.clients import RunAddress
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import describe_store


class RegionServers:
    """The servers of all regions of a recipe, in the subfolder `regions` of the run's folder."""

    def __init__(self, recipe: Recipe, folder: DataFolder, say: Callable[[str], None]) -> None:
        self._run = recipe.name
        self._servers = {
            name: Servers(
                recipe.kafka.model_copy(update=region.kafka.model_dump()),
                region.store,
                DataFolder(folder.root / "regions" / name),
                partial(_say_in_region, say, name),
            )
            for name, region in recipe.regions.items()
        }

    def claim(self) -> None:
        """Own the folders and ports of the embedded servers. Raises ServerError."""
        for servers in self._servers.values():
            servers.claim()

    def start(self) -> None:
        """Start the embedded servers; return when all answer. Raises as `Servers.start`."""
        for servers in self._servers.values():
            servers.start()

    def describe(self) -> dict[str, str]:
        """Return region to its servers, as RecipeRevision has them; known from `claim` on."""
        return {
            name: json.dumps({
                "bootstrap": servers.connection.bootstrap, "store": describe_store(servers.store_address),
            })
            for name, servers in self._servers.items()
        }  # fmt: skip

    def list_addresses(self) -> dict[str, str]:
        """Return region to the address of the run in the region's Kafka."""
        return {name: str(RunAddress(servers.connection, self._run)) for name, servers in self._servers.items()}

    def revive(self) -> bool:
        """Start again what has died; return whether anything had died."""
        died = [servers.revive() for servers in self._servers.values()]
        return any(died)

    def pids(self) -> dict[str, int]:
        """Return the pids of the running embedded servers, by `broker of west`."""
        return {f"{what} of {name}": pid for name, one in self._servers.items() for what, pid in one.pids().items()}

    def stop(self, timeout_s: float = 30) -> None:
        """Stop the embedded servers."""
        for servers in self._servers.values():
            servers.stop(timeout_s)


def _say_in_region(say: Callable[[str], None], region: str, words: str) -> None:
    say(f"region {region}: {words}")
