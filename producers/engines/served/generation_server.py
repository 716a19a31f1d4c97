"""One generation server and its weights: a process that the engine starts and restarts, or a server given by URL."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import structlog

from headrace.infra.backoff import Backoff
from headrace.infra.embedded.loopback_ports import HOST
from headrace.infra.embedded.server_process import ServerCommand, ServerError, ServerFailed, ServerProcess
from headrace.infra.process.child_process import list_session
from headrace.infra.process.log_lines import find_last_error
from headrace.infra.process.shared_memory import SharedMemoryNotes
from headrace.producers.engines.contract import EngineAway, EngineError
from headrace.producers.engines.served.admission import Admission
from headrace.producers.engines.served.request_gate import RequestGate
from headrace.producers.engines.served.server_api import (
    FRESH,
    OTHER_WEIGHTS,
    ServerApi,
    ServerAway,
    ServerLoad,
    WeightsRefused,
)

log = structlog.get_logger()

LOG = "stdout.log"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Seconds between two attempts to start a server."""
LOOK_AT_SERVER_S = 2.0
WAIT_FOR_TURN_S = 0.1
NOTE_EVERY_S = 1.0
"""Seconds between two looks at the shared memory of a server that starts."""
FROZEN_S = 120.0
"""A server that has not answered for so many seconds is killed and started again."""


class LostInLoad(EngineAway):
    """A server failed while it loaded weights; the weights may be the cause."""


class NotStarted(EngineAway):
    """A server was started now, and failed in its start."""


@dataclass(frozen=True, slots=True)
class ServedWeights:
    """One version as a folder."""

    version: int
    folder: Path
    base: Path | None = None
    """The model that these weights are an adapter of."""


@dataclass(frozen=True, slots=True)
class ServerLaunch:
    """How servers of a kind are started."""

    what: str
    """Name of the kind, as `SGLang server`."""
    build_command: Callable[[ServedWeights, int], Sequence[str]]
    """Weights and port to the command."""
    open_api: Callable[[str], ServerApi]
    """URL to its interface."""
    start_limit_s: float
    """For a start, the reading of the weights included."""


class EngineProcess(ServerProcess):
    """The process of a server. It gets this process's whole environment: drivers and libraries are found by it.

    Args:
        folder: Its log and ports are there.
        launch: How it is started.
        environment: Further variables, such as which GPU it may use.
    """

    what: ClassVar[str] = "generation server"
    port_names = ("http",)

    def __init__(self, folder: Path, launch: ServerLaunch, environment: Mapping[str, str]) -> None:
        super().__init__(folder)
        self._launch, self._environment = launch, dict(environment)
        self.weights: ServedWeights | None = None
        """The weights that the server loads when it starts."""
        self.api: ServerApi | None = None
        self.is_ending = False
        """Whether to begin no start, and to give up one that is under way."""
        self._shared_memory = SharedMemoryNotes()
        """What the server shares between its processes. It removes that only if it ends in order."""

    def start(self, timeout_s: float = 60) -> Self:
        """Start the server as any other, and note its shared memory."""
        try:
            super().start(timeout_s)
        except ServerFailed:
            self._refuse_if_ending()  # it was ended here while it started
            raise
        self._note_shared_memory()
        return self

    def _note_shared_memory(self) -> None:
        if (pid := self.pid) is not None:
            self._shared_memory.note(list_session(pid))

    def _command(self) -> ServerCommand:
        self._refuse_if_ending()
        if self.weights is None:
            raise ServerError(f"the {self._launch.what} cannot start before weights are loaded")
        port = self.port("http")
        self._clean_up(is_clean_end=False)  # after the server that was here before
        self._shared_memory.begin()
        self.api = self._launch.open_api(f"http://{HOST}:{port}")
        return ServerCommand(
            self._launch.build_command(self.weights, port),
            logs=(self.folder / LOG,),
            environment={**os.environ, **self._environment},
        )

    def _clean_up(self, *, is_clean_end: bool) -> None:  # noqa: ARG002 - the same after any end
        self._close_api()
        self._shared_memory.remove()

    def _is_answering(self) -> bool:
        if self._shared_memory.age_s >= NOTE_EVERY_S:  # a start that fails leaves something behind, too
            self._note_shared_memory()
        self._refuse_if_ending()
        return self.api is not None and self.api.is_ready()

    def _refuse_if_ending(self) -> None:
        if self.is_ending:
            raise ServerError(f"the {self._launch.what} is being stopped")

    def _close_api(self) -> None:
        if self.api is not None:
            self.api.close()


class GenerationServer:
    """A server with one set of weights. `api` may be used by any thread while `version` is not None.

    Args:
        name: For messages and threads, such as `solver-0`.
        launch: How it is started, and spoken to.
        process: The process; None for a server that somebody else runs.
        url: Its address, if somebody else runs it.
        most_requests: That it may have at once; 0 to find it.
    """

    def __init__(
        self, name: str, launch: ServerLaunch, process: EngineProcess | None, url: str = "", most_requests: int = 0
    ) -> None:
        self.name = name
        self.version: int | None = None
        """The served version; None while the server cannot generate."""
        self.starting: int | None = None
        """The version with which its process is being started."""
        self.unstarted: int | None = None
        """The version with which its last start failed; None after any success."""
        self.trouble = ""
        """Why the server cannot generate."""
        self.gate = RequestGate(Admission(most_requests))
        """The requests of the server."""
        self.load = ServerLoad(0, 0, 0)
        """The load of the server when it was last read."""
        self._launch, self._process, self._url = launch, process, url
        self._attached = launch.open_api(url) if process is None else None
        self._weights: ServedWeights | None = None
        self._turn = threading.Lock()
        self._is_gone = threading.Event()
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._retry_at = 0.0
        self._answered_at = time.monotonic()

    @property
    def title(self) -> str:
        """Its kind and name, for messages, such as `SGLang server solver-0`."""
        return f"{self._launch.what} {self.name}"

    @property
    def is_ours(self) -> bool:
        """Whether its process is started and stopped here."""
        return self._process is not None

    @property
    def url(self) -> str:
        """Address of the server. Raises ServerError before the first start of its process."""
        return self._url if self._process is None else f"http://{HOST}:{self._process.port('http')}"

    @property
    def api(self) -> ServerApi:
        """Interface of the server. Raises ServerAway before the first start of its process."""
        api = self._attached or (self._process.api if self._process is not None else None)
        if api is None:
            raise ServerAway(f"{self.title} is not started")
        return api

    def serve(self, weights: ServedWeights, *, may_start: bool = True) -> float:
        """Load weights into the running server or start one with them; return the seconds without generation.

        Raises WeightsRefused if the server keeps its old weights, and EngineAway if it failed meanwhile, does not
        start, or is down and may not be started here: then `look` starts it.
        """
        with self._take_turn(may_start=may_start):
            if self._is_down():
                self._start_unless_too_early(weights)
                return 0.0
            try:
                self._refuse_other_writers()
            except ServerAway as away:  # these weights are not the cause
                self.note_gone(away)
                raise EngineAway(self.trouble) from away
            try:
                paused_s = self.api.load(weights.folder, weights.version)
            except ServerAway as away:
                self._weights = None  # it may have the old ones, the new ones, or some of each
                self.note_gone(away)
                raise LostInLoad(f"{self.title} failed while it loaded version {weights.version}: {away}") from away
            self._note_served(weights)
            return paused_s

    def note_gone(self, away: ServerAway) -> None:
        """Mark the server as unusable until `look` has found it well or restarted it."""
        if not self._is_gone.is_set():
            # The server ended, froze or must be replaced; its requests wait or go to another.
            log.warning("engine.server_gone", server=self.name, why=str(away))
        self.trouble = self._describe_gone(away)
        self.version = None
        self._is_gone.set()

    def replace(self, why: str) -> None:
        """Restart the server's process although it still answers."""
        self._weights = None
        self.note_gone(ServerAway(why))

    def look(self, weights: ServedWeights | None) -> None:
        """Check that the server answers; if not, start it again with these weights and wait for the start."""
        if weights is None or not self._turn.acquire(blocking=False):
            return  # nothing to serve yet, or it loads now
        try:
            is_dead = self._process is not None and not self._process.is_alive()
            if is_dead and self.version is not None:
                self.note_gone(ServerAway("its process ended"))
            if self._is_gone.is_set() or is_dead:
                if time.monotonic() >= self._retry_at:
                    self._revive(weights)
                return
            self._read_load()
        finally:
            self._turn.release()

    def close(self) -> None:
        """Stop the process, if the engine started it; give up a start or a load that is under way."""
        self.version = None
        if self._process is not None:
            self._process.is_ending = True
            self._process.stop()  # a load ends with its server
            with self._turn:
                self._process.stop()
        with suppress(ServerAway):
            self.api.close()

    @contextmanager
    def _take_turn(self, *, may_start: bool) -> Iterator[None]:
        """Wait for the turn. Raises EngineAway once the server is down, unless it may be started in this turn."""
        while True:
            is_mine = self._turn.acquire(timeout=WAIT_FOR_TURN_S)
            try:
                if not may_start and self._is_down():
                    raise EngineAway(self.trouble or self._describe_gone("its process ended"))
                if is_mine:
                    yield
                    return
            finally:
                if is_mine:
                    self._turn.release()

    def _describe_gone(self, why: object) -> str:
        return f"{self.title} is not used until it works again: {why}"

    def _is_down(self) -> bool:
        """Return whether a process of ours has to be started, or is being started."""
        if self._process is None:
            return False
        was_lost = self._is_gone.is_set() and self._weights is None  # in a load, although its process may live
        return was_lost or self.starting is not None or not self._process.is_alive()

    def _read_load(self) -> None:
        now = time.monotonic()
        try:
            self.load = self.api.read_load()
            self._answered_at = now
            self._update_limit()
        except ServerAway as away:
            if now - self._answered_at > FROZEN_S:
                self.note_gone(ServerAway(f"the server gave no answer for {FROZEN_S:.0f} s ({away})"))
                if self._process is not None:
                    self._process.stop(timeout_s=5)

    def _update_limit(self) -> None:
        admission = self.gate.admission
        before = admission.limit
        self.gate.look(self.load)
        if admission.limit != before:
            # How many requests the server gets at once has changed.
            log.info("engine.limit", server=self.name, limit=admission.limit, before=before, why=admission.why)

    def _revive(self, weights: ServedWeights) -> None:
        try:
            if self._is_up_with(weights):  # a connection broke, and the server is as it was
                self._note_served(weights)
            elif self._process is not None:
                self._start(weights)
            else:
                self.api.load(weights.folder, weights.version)
                self._note_served(weights)
        except (EngineError, ServerAway) as error:
            self.trouble = str(error)
            self._retry_at = time.monotonic() + self._backoff.next_s()
            # The server could not be started, or did not load weights; it is tried again later.
            log.warning("engine.server_down", server=self.name, why=str(error))
        else:
            log.info("engine.server_back", server=self.name, version=weights.version)

    def _is_up_with(self, weights: ServedWeights) -> bool:
        """Return whether the server's own process runs, generates, and has these weights."""
        if self._process is None or not self._process.is_alive() or self._weights != weights:
            return False
        try:
            return self.api.is_ready() and self.api.read_weight_version() == str(weights.version)
        except ServerAway:
            return False

    def _start_unless_too_early(self, weights: ServedWeights) -> None:
        if time.monotonic() < self._retry_at:
            raise EngineAway(self.trouble)
        try:
            self._start(weights)
        except NotStarted:
            self._retry_at = time.monotonic() + self._backoff.next_s()
            raise

    def _start(self, weights: ServedWeights) -> None:
        assert self._process is not None  # noqa: S101 - only a server of ours is started
        log_file = self._process.folder / LOG
        self.trouble = f"{self.title} is being started with version {weights.version} (log: {log_file})"
        self._process.weights, self.starting = weights, weights.version
        try:
            if self._process.is_alive():  # else it would stay as it is
                self._process.stop(timeout_s=5)
            self._process.start(self._launch.start_limit_s)
            self.api.note_started(weights.folder, weights.version)
        except (ServerError, ServerAway, EngineError) as error:
            self._process.stop(timeout_s=5)  # which may run, and would keep its memory
            self._is_gone.set()
            self.unstarted = weights.version
            if isinstance(error, EngineError):  # it refused them, which it may also do next time
                self.trouble = str(error)
                raise
            first, *rest = str(error).splitlines()
            said = find_last_error([line.strip() for line in rest])  # which a server may follow with how it ends
            why = ": ".join(filter(None, (first.partition(";")[0], said)))
            self.trouble = f"{self.title} does not start: {why} (log: {log_file})"
            raise NotStarted(self.trouble) from error
        finally:
            self.starting = None
        self._note_served(weights)

    def _note_served(self, weights: ServedWeights) -> None:
        self._weights, self._answered_at = weights, time.monotonic()
        self.trouble, self.unstarted = "", None
        self._backoff.reset()
        self._is_gone.clear()
        self.version = weights.version

    def _refuse_other_writers(self) -> None:
        """Raise WeightsRefused if another process has loaded weights: tokens would be recorded under wrong versions.

        A server that its user has started again is fresh: nobody has loaded weights.
        """
        label = self.api.read_weight_version()
        if self._weights is not None and label not in {FRESH, str(self._weights.version)}:
            raise WeightsRefused(
                f"{self.title} serves weights with the label {label!r}, but this worker loaded version "
                f"{self._weights.version}: {OTHER_WEIGHTS}"
            )
