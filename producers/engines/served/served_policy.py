"""One policy in its generation servers: training servers have the newest version, others hold exact versions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager

import structlog

from headrace.infra.weights.tensors import Tensor
from headrace.producers.engines.contract import EngineAway, EngineError, VersionGone
from headrace.producers.engines.served.generation_server import GenerationServer, LostInLoad, NotStarted, ServedWeights
from headrace.producers.engines.served.model_shapes import ModelShapes
from headrace.producers.engines.served.server_api import ServerAway
from headrace.producers.engines.served.weight_folders import WeightFolders

log = structlog.get_logger()

MOST_DEATHS = 2
"""Servers that may fail while they load one version; after that the version is not loaded again."""


class ServedPolicy:
    """A policy and its servers. Any thread may call.

    Args:
        name: Of the policy.
        shapes: Names and shapes that its weights must have.
        servers: Serve the newest version.
        evaluators: Each holds one exact version at a time.
        folders: Where weights are written for servers to read.
        writes_ties: Whether tied parameters are written under each of their names.
    """

    def __init__(
        self,
        name: str,
        shapes: ModelShapes,
        servers: Sequence[GenerationServer],
        evaluators: Sequence[GenerationServer],
        folders: WeightFolders,
        *,
        writes_ties: bool = False,
    ) -> None:
        self.name, self.shapes, self.servers, self.evaluators = name, shapes, servers, evaluators
        self.newest: ServedWeights | None = None
        self.loaded: set[int] = set()
        """Versions that this process loaded into servers: a token of any other version comes from another process."""
        self._folders, self._writes_ties = folders, writes_ties
        self._noting = threading.Lock()
        """Held only for a moment, to change `_holds`, `_loading` or `_deaths`, or to choose which folders go. Within it
        no other lock is taken."""
        self._loading: set[int] = set()
        """Versions that an evaluation is loading or about to load."""
        self._held: dict[int, GenerationServer] = {}
        self._holds: Counter[int] = Counter()
        """Version to its holds, where there are some. As `_held` it is replaced, not changed: any thread may look
        through it."""
        self._turn = threading.Lock()
        """Guards `_held`. Held while a version is held, which may take as long as a server takes to start."""
        self._swapping = threading.Lock()
        """Held while the newest version is loaded."""
        self._later: ServedWeights | None = None
        """A newer version that no server could load, because all are down: for those that no longer start with the
        newest."""
        self._settled: dict[GenerationServer, ServedWeights] = {}
        """The newest version that was tried once more, by server."""
        self._deaths: Counter[int] = Counter()
        """Version to the servers that failed while they loaded it."""

    @property
    def held_versions(self) -> int:
        """How many exact versions it can hold at once."""
        return len(self.evaluators)

    def load(self, version: int, weights: Mapping[str, Tensor], pool: Executor) -> float:
        """Load a version into all training servers; return the seconds without generation.

        Raises EngineError if no server loaded it, and EngineAway if a server may load it later.
        """
        self._refuse_deadly(version)
        with self._swapping:
            return self._load_into_all(self._write(version, weights), pool)

    def _load_into_all(self, wanted: ServedWeights, pool: Executor) -> float:
        version = wanted.version
        self.loaded.add(version)
        paused: list[float] = []
        errors: list[EngineError] = []
        # Only the first start is waited for: later ones are the supervisor's, and hold no version up.
        may_start = self.newest is None
        outcomes = pool.map(lambda one: _serve(one, wanted, may_start=may_start), self.servers)
        for server, outcome in zip(self.servers, outcomes, strict=True):
            if isinstance(outcome, EngineError):
                if isinstance(outcome, LostInLoad):
                    self._count_death(version)
                errors.append(outcome)
                # The server keeps its earlier version, or is started again.
                log.warning("engine.not_loaded", server=server.name, version=version, why=str(outcome))
            else:
                paused.append(outcome)
        is_away = any(isinstance(error, EngineAway) for error in errors)
        if paused:
            self.newest, self._later = wanted, None
        elif is_away:
            self._later = wanted
        self._remove_unneeded()
        if not paused:
            raise (EngineAway if is_away else EngineError)("; ".join(map(str, errors)))
        return max(paused)

    def hold(self, version: int, weights: Mapping[str, Tensor] | None) -> None:
        """See `Engine.hold`."""
        if not self.evaluators:
            raise EngineError(
                "this engine has no server that keeps a version for evaluations: set evaluation_servers of "
                "rollout.engine to 1 or more; if it has urls, list such servers in evaluation_urls"
            )
        with self._turn, self._counting_hold(version):
            if version not in self._held:
                self._load_exact(version, weights)

    def release(self, version: int) -> None:
        """See `Engine.release`. The version stays in its server until another version needs that server."""
        with self._noting:  # without the turn: it does not wait for another version's server
            if not self._holds[version]:
                raise VersionGone(f"policy {self.name} version {version} is not held, so it cannot be released")
            self._holds = self._holds - Counter([version])

    def find_held(self, version: int) -> GenerationServer | None:
        """Return the server that holds a version; None while that server is down. Raises VersionGone."""
        server = self._held.get(version)
        if server is None or not self._holds[version]:
            raise self._describe_missing(version, self._list_used())
        return server if server.version == version else None

    def is_serving(self, server: GenerationServer, version: int | None) -> bool:
        """Return whether a server has a version (None: the newest). Raises VersionGone if it is not held."""
        return server.version is not None if version is None else self.find_held(version) is server

    def find_weights_of(self, server: GenerationServer) -> ServedWeights | None:
        """Return the weights that a server of this policy has to serve now; None if there are none yet."""
        if server in self.servers:
            is_stuck = self.newest is not None and server.unstarted == self.newest.version
            return self._later or self.newest if is_stuck else self.newest
        for version, holder in self._held.items():
            if holder is server and (folder := self._folders.find(self.name, version)):
                return ServedWeights(version, folder)
        return None

    def load_missing(self, server: GenerationServer) -> None:
        """Load the other versions that a running server needs: here the newest, if it came while the server started."""
        if server not in self.servers or not self._swapping.acquire(blocking=False):
            return  # the version that is being loaded goes to all servers that are up
        try:
            if self._later is not None and server.version == self._later.version:
                self.newest, self._later = self._later, None
            newest = self.newest
            if newest is None or server.version in {None, newest.version} or self._settled.get(server) == newest:
                return
            self._settled[server] = newest
            outcome = _serve(server, newest, may_start=False)
            if isinstance(outcome, EngineError):
                log.warning("engine.not_loaded", server=server.name, version=newest.version, why=str(outcome))
        finally:
            self._swapping.release()

    @contextmanager
    def _counting_hold(self, version: int) -> Iterator[None]:
        """Keep a version's folder during the block, and count its hold at the end, unless there was an error.

        Folders of other versions are removed at any time, so a folder is looked for in the block only.
        """
        with self._noting:
            self._loading.add(version)
        try:
            yield
            with self._noting:
                self._holds = self._holds + Counter([version])
        finally:
            with self._noting:
                self._loading.discard(version)

    def _remove_unneeded(self) -> None:
        """Remove the folders of versions that no server reads or will read."""
        with self._noting:  # an evaluation that looks for its version later does not find one of these any more
            self._folders.set_aside_others(self.name, self._list_needed() | self._list_read())
        self._folders.remove_aside(self.name)

    def _list_read(self) -> set[int]:
        """Return the newest version, and those that servers read while they start, or may start with."""
        loaded = [one.version for one in (self.newest, self._later) if one is not None]
        return {*loaded, *(one.starting for one in self.servers if one.starting is not None)}

    def _list_needed(self) -> set[int]:
        """Return the versions whose folders are needed beside the newest one's."""
        return {*self._held, *self._loading}

    def _refuse_deadly(self, version: int) -> None:
        """Raise EngineError for a version that took too many servers down."""
        if (deaths := self._deaths[version]) >= MOST_DEATHS:
            raise EngineError(
                f"version {version} of {self.name} is not loaded again, because servers failed {deaths} times "
                "while they loaded it; look into the servers' logs. Other versions are loaded as usual"
            )

    def _count_death(self, version: int) -> None:
        """Count a server that failed while it loaded a version."""
        with self._noting:
            self._deaths[version] += 1

    def _load_exact(self, version: int, weights: Mapping[str, Tensor] | None) -> None:
        self._refuse_deadly(version)
        wanted = self._find_or_write(version, weights)
        server = self._find_free()
        try:
            server.serve(wanted)
        except EngineAway as away:
            # A failed start says nothing of a version, unless the version took a server down before.
            if isinstance(away, LostInLoad) or (self._deaths[version] and isinstance(away, NotStarted)):
                self._count_death(version)
            raise
        self.loaded.add(version)
        self._held = {key: one for key, one in self._held.items() if one is not server} | {version: server}

    def _find_or_write(self, version: int, weights: Mapping[str, Tensor] | None) -> ServedWeights:
        """Return the folder of a version; write it if needed. Raises VersionGone if there are no weights to write."""
        if folder := self._folders.find(self.name, version):
            return ServedWeights(version, folder)
        if weights is None:
            raise self._describe_missing(version, sorted(self._list_needed() - {version}))
        return self._write(version, weights)

    def _write(self, version: int, weights: Mapping[str, Tensor]) -> ServedWeights:
        self.shapes.check(weights)
        if self._writes_ties:
            weights = self.shapes.add_tied_names(weights)
        folder = self._folders.write(self.name, version, weights)
        return ServedWeights(version, folder, self._folders.find_base(self.name))

    def _describe_missing(self, version: int, held: Sequence[int]) -> VersionGone:
        newest = self.newest.version if self.newest else None
        return VersionGone(
            f"policy {self.name} version {version} is not held by this engine (held: {list(held)}, served: {newest}): "
            "call `hold` before use"
        )

    def _find_free(self) -> GenerationServer:
        used = self._list_used()
        for server in self.evaluators:
            if all(self._held[version] is not server for version in used):
                return server
        raise EngineError(
            f"policy {self.name} already holds versions {used}, all in use; release a version, or give more than "
            f"{len(self.evaluators)} evaluation_servers (with urls: evaluation_urls)"
        )

    def _list_used(self) -> list[int]:
        return sorted(self._holds)


def _serve(server: GenerationServer, weights: ServedWeights, *, may_start: bool) -> float | EngineError:
    try:
        return server.serve(weights, may_start=may_start)
    except EngineError as error:
        return error
    except ServerAway as away:
        return EngineAway(str(away))
