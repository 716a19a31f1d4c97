"""One policy whose versions are adapters: its servers have the base, the newest version and those that are held."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from typing import cast

import structlog

from headrace.infra.weights.tensors import Tensor
from headrace.producers.engines.contract import EngineError
from headrace.producers.engines.served.generation_server import GenerationServer, ServedWeights
from headrace.producers.engines.served.served_policy import MOST_DEATHS, ServedPolicy
from headrace.producers.engines.served.server_api import AdapterServerApi, ServerAway

log = structlog.get_logger()

MOST_HELD = 2
MOST_IN_BATCH = MOST_HELD + 2
"""Versions of an adapter that a server can use at once: the newest, the one before it, and the held ones."""
MOST_LEFT_OVER = 100
"""Adapters that a server could not unload: from this number on it is restarted, to free memory."""


class AdapterPolicy(ServedPolicy):
    """Exact versions need no servers of their own: each server has them beside the newest. Any thread may call."""

    @property
    def held_versions(self) -> int:
        """See `ServedPolicy.held_versions`."""
        return MOST_HELD

    def load(self, version: int, weights: Mapping[str, Tensor], pool: Executor) -> float:
        """See `ServedPolicy.load`; servers unload the versions that are not needed any more."""
        paused_s = super().load(version, weights, pool)
        with self._turn:  # to the end: a hold would find a version in a server that is about to unload it
            kept = {version, *self._list_used()}
            list(pool.map(lambda server: self._unload_others(server, kept), self.servers))
        return paused_s

    def hold(self, version: int, weights: Mapping[str, Tensor] | None) -> None:
        """See `Engine.hold`."""
        with self._turn, self._counting_hold(version):
            if not self._holds[version]:
                self._load_beside(version, weights)

    def find_held(self, version: int) -> GenerationServer | None:
        """See `ServedPolicy.find_held`; of the servers that have the version, the one with the fewest requests.

        Raises EngineError for a version that none has, because it takes them down.
        """
        if not self._holds[version]:
            raise self._describe_missing(version, self._list_used())
        have = [one for one in self.servers if one.version is not None and _adapters_of(one).has(version)]
        if not have:
            self._refuse_deadly(version)
        return min(have, key=lambda one: one.gate.crowding, default=None)

    def is_serving(self, server: GenerationServer, version: int | None) -> bool:
        """See `ServedPolicy.is_serving`."""
        if version is not None and not self._holds[version]:
            raise self._describe_missing(version, self._list_used())
        return server.version is not None and (version is None or _adapters_of(server).has(version))

    def load_missing(self, server: GenerationServer) -> None:
        """See `ServedPolicy.load_missing`; a restarted server also gets the held versions."""
        super().load_missing(server)
        for version in self._list_used():
            if folder := self._folders.find(self.name, version):
                self._load_into_server(server, ServedWeights(version, folder))

    def _list_needed(self) -> set[int]:
        return {*self._list_used(), *self._loading}

    def _load_beside(self, version: int, weights: Mapping[str, Tensor] | None) -> None:
        """Load a version into all servers that are up.

        Raises VersionGone, and EngineError if too many are held or this one takes servers down.
        """
        self._refuse_deadly(version)
        used = self._list_used()
        if len(used) >= MOST_HELD:
            raise EngineError(f"policy {self.name} already holds versions {used}, all in use; release a version first")
        wanted = self._find_or_write(version, weights)
        self.loaded.add(version)
        for server in self.servers:
            self._load_into_server(server, wanted)

    def _load_into_server(self, server: GenerationServer, wanted: ServedWeights) -> None:
        """Load a version into a server that is up, unless the version takes servers down. Raises WeightsRefused."""
        if server.version is None or self._deaths[wanted.version] >= MOST_DEATHS:
            return
        if _adapters_of(server).has(wanted.version):
            return
        api, is_there = _adapters_of(server), False
        try:
            api.read_weight_version()
            is_there = True
            api.add(wanted.folder, wanted.version)
        except ServerAway as away:
            if is_there:  # else the version is not the cause
                self._count_death(wanted.version)
                server.replace(str(away))  # as it was, it would get this version again, and count twice
            else:
                server.note_gone(away)

    def _unload_others(self, server: GenerationServer, versions: set[int]) -> None:
        if server.version is None:
            return
        try:
            _adapters_of(server).unload_others(versions)
            if (count := _adapters_of(server).left_over) >= MOST_LEFT_OVER:
                server.replace(f"the server holds {count} adapters that it cannot unload, so it is started again")
        except (ServerAway, EngineError) as error:  # it only costs memory
            # A server keeps an adapter that is no longer needed, which only costs memory.
            log.warning("engine.not_unloaded", server=server.name, why=str(error))


def _adapters_of(server: GenerationServer) -> AdapterServerApi:
    return cast(AdapterServerApi, server.api)
