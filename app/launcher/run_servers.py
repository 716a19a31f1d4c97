"""The servers of a run, for `headrace up`: those at home, and a Kafka and a store for each region."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from rich.markup import escape

from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.embedded.servers import Servers
from headrace.infra.errors import Unavailable
from headrace.infra.kafka.clients import RunAddress
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.run import describe_store


class RunServers:
    """All servers of a run; those of regions are in the subfolder `regions` of the run's folder.

    Args:
        home: The servers at home.
        recipe: Recipe of the run.
        folder: The run's folder.
        say: Reports to people.
    """

    def __init__(self, home: Servers, recipe: Recipe, folder: DataFolder, say: Callable[[str], None]) -> None:
        self._run, self._home, self._say = recipe.name, home, say
        self._regions = {
            name: Servers(
                recipe.kafka.model_copy(update=region.kafka.model_dump()),
                region.store,
                DataFolder(folder.regions / name),
                partial(_say_in_region, say, name),
            )
            for name, region in recipe.regions.items()
        }

    def list_unnamed(self) -> list[str]:
        """Return the keys of a recipe that would name the servers which are embedded here."""
        places = {"": self._home, **{f"regions.{name}.": one for name, one in self._regions.items()}}
        return [
            f"{place}{key}"
            for place, one in places.items()
            for key, embedded in (
                ("kafka.bootstrap", one.has_embedded_kafka),
                ("store.endpoint", one.has_embedded_store),
            )
            if embedded
        ]

    def claim(self) -> None:
        """Own the folders and ports of the embedded servers. Raises ServerError."""
        for servers in (self._home, *self._regions.values()):
            servers.claim()

    def start(self) -> None:
        """Start the embedded servers; return when all answer. Raises as `Servers.start`.

        A named server of a region that is away is only reported, because the home goes on without it.
        """
        self._home.start()
        for name, servers in self._regions.items():
            try:
                servers.start()
            except Unavailable as error:
                if servers.has_embedded_kafka or servers.has_embedded_store:
                    raise
                _say_in_region(self._say, name, f"{escape(str(error))}. The home goes on without it")

    def describe_regions(self) -> dict[str, str]:
        """Return region to its servers, as RecipeRevision has them; known from `claim` on."""
        return {
            name: json.dumps({
                "bootstrap": servers.connection.bootstrap, "store": describe_store(servers.store_address),
            })
            for name, servers in self._regions.items()
        }  # fmt: skip

    def list_region_addresses(self) -> dict[str, str]:
        """Return region to the address of the run in the region's Kafka."""
        return {name: str(RunAddress(servers.connection, self._run)) for name, servers in self._regions.items()}

    def revive(self) -> bool:
        """Start again what has died; return whether a server at home had died: a region keeps nobody else waiting."""
        for servers in self._regions.values():
            servers.revive()
        return self._home.revive()

    def pids(self) -> dict[str, int]:
        """Return the pids of the running embedded servers: `broker`, `store`, `broker of west`, …."""
        away = {f"{what} of {name}": pid for name, one in self._regions.items() for what, pid in one.pids().items()}
        return {**self._home.pids(), **away}

    def stop(self, timeout_s: float = 30) -> None:
        """Stop the embedded servers."""
        for servers in (self._home, *self._regions.values()):
            servers.stop(timeout_s)


def _say_in_region(say: Callable[[str], None], region: str, words: str) -> None:
    say(f"region {region}: {words}")
