"""Kafka and object store of a run: embedded in its data folder, or named by the recipe."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import structlog
from rich.markup import escape

from headrace.infra.backoff import Backoff
from headrace.infra.embedded.data_folder import DataFolder
from headrace.infra.embedded.jars import fetch_class_path
from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.embedded.server_probe import Ask, ServerProbe, Silence, is_kafka_answering, is_store_answering
from headrace.infra.embedded.server_process import ServerProcess
from headrace.infra.embedded.store_server import EmbeddedStore
from headrace.infra.environment import KEYS_FILE_VARIABLE, cache_folder, read_environment
from headrace.infra.errors import HeadraceError
from headrace.infra.kafka.advertised import refuse_unreachable
from headrace.infra.kafka.client_settings import merge_client_settings
from headrace.infra.kafka.clients import Connection, KafkaAway, KafkaRefused, get_admin, translate_kafka_errors
from headrace.infra.kafka.cluster_topics import fetch_topics
from headrace.infra.kafka.topic_offsets import fetch_end_offsets
from headrace.infra.recipe.server_settings import Kafka, Store
from headrace.infra.store.object_store import ObjectStore, StoreAddress

SERVERS_PATIENCE_S = 10.0
"""Seconds for servers named by the recipe to answer."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 15.0
"""Pauses between two starts of a server that fails to start."""
ROOM_BYTES = 32 << 20
"""Free bytes below which a disk counts as full: a segment's indexes alone take 20 MB."""
FULL = "its disk is full"
LONGEST_START_S = 5.0
"""Seconds to wait for a running start before its server is stopped."""

ReportLine = Callable[[str], None]

log = structlog.get_logger()


class Servers:
    """Both servers of a run, started in parallel. `claim` starts nothing; after it addresses are known.

    Args:
        kafka: The recipe's section; without an address, Kafka is embedded.
        store: The recipe's section; without an address, the store is embedded.
        folder: Folder of embedded servers.
        say: Reports to people.
    """

    def __init__(self, kafka: Kafka, store: Store, folder: DataFolder, say: ReportLine) -> None:
        self._named_kafka, self._named_store = kafka, store
        self._say = say
        self._kafka = None if kafka.bootstrap else EmbeddedKafka(folder.kafka, progress=say)
        self._store = None if store.endpoint else EmbeddedStore(folder.store)
        self._starters: list[threading.Thread] = []
        self._restarters = [ServerRestarter(say) for _ in self._embedded]
        self._probes: dict[str, ServerProbe] = {}
        """Probes by server name, from the first `watch` on."""
        self._reported: set[str] = set()
        """Servers whose silence is already reported."""

    @property
    def has_embedded_kafka(self) -> bool:
        """Whether Kafka is embedded."""
        return self._kafka is not None

    @property
    def has_embedded_store(self) -> bool:
        """Whether the store is embedded."""
        return self._store is not None

    @property
    def _embedded(self) -> list[EmbeddedKafka | EmbeddedStore]:
        return [server for server in (self._kafka, self._store) if server is not None]

    def claim(self) -> None:
        """Own the folders and ports of the embedded servers. Raises ServerError."""
        for server in self._embedded:
            server.claim()

    @property
    def connection(self) -> Connection:
        """Connection to Kafka; for an embedded Kafka known from `claim` on."""
        named = self._named_kafka
        return Connection(self._kafka.bootstrap if self._kafka else named.bootstrap, self.client, named.compression)

    @cached_property
    def client(self) -> dict[str, str]:
        """Further librdkafka settings: the recipe's, overridden by the environment's, as of the first call."""
        return merge_client_settings(self._named_kafka.client)

    @property
    def store_address(self) -> StoreAddress:
        """Address of the store; for an embedded store known from `claim` on."""
        store = self._named_store
        if self._store is not None:
            return self._store.address(store.bucket)
        kept = read_environment(KEYS_FILE_VARIABLE)
        return StoreAddress(store.endpoint, store.bucket, secure=store.secure, region=store.region, keys_file=kept)

    def fetch_jars(self) -> None:
        """Fetch missing jars of an embedded Kafka, and report it. Raises JarUnavailable."""
        if self._kafka is not None:
            fetch_class_path(cache_folder(), lambda words: self._say(escape(words)))

    def start(self) -> None:
        """Start the embedded servers in parallel; return when both servers answer.

        Raises ServerError for an embedded server, and KafkaAway or StoreError for a server named by the recipe.
        """
        failures: list[HeadraceError] = []

        def start(server: EmbeddedKafka | EmbeddedStore) -> None:
            try:
                server.start()
            except HeadraceError as error:
                failures.append(error)

        self._starters = [threading.Thread(target=start, args=(s,), daemon=True) for s in self._embedded]
        for starter in self._starters:
            starter.start()
        for starter in self._starters:
            starter.join()
        if failures:
            raise failures[0]
        if self._kafka is None:
            self._await_kafka()
        else:
            await_leaders(self.connection)
        with ObjectStore(self.store_address) as store:
            store.wait_ready(SERVERS_PATIENCE_S)
            store.ensure_bucket()

    def _await_kafka(self) -> None:
        try:
            fetch_topics(self.connection, SERVERS_PATIENCE_S, 3)
        except KafkaAway as error:
            raise KafkaAway(
                f"no Kafka answers at {self._named_kafka.bootstrap}, which the recipe names as kafka.bootstrap: start "
                "it, correct the address, or remove the key, so that an embedded Kafka is started"
            ) from error
        refuse_unreachable(self.connection)

    def revive(self) -> bool:
        """Restart an embedded server that has died, with its data; if it fails to start, try again with longer pauses.

        All components wait meanwhile, so even a full disk ends nothing; the problem is reported once. Returns whether a
        server had died.
        """
        died = [
            restarter.revive_if_due(server) for server, restarter in zip(self._embedded, self._restarters, strict=True)
        ]
        return any(died)

    def is_answering(self) -> bool:
        """Return whether both servers answer now; this takes some seconds if a server does not answer."""
        return all(ask() for ask in self._build_checks().values())

    def _build_checks(self) -> dict[str, Ask]:
        connection, store = self.connection, self.store_address
        return {"broker": lambda: is_kafka_answering(connection), "object store": lambda: is_store_answering(store)}

    def watch(self) -> tuple[Silence, ...]:
        """Return the servers that run but do not answer, such as frozen ones; report each silence and its end once.

        Probing starts with the first call. `revive` handles dead servers.
        """
        if not self._probes:
            self._probes = {what: ServerProbe(ask) for what, ask in self._build_checks().items()}
            for probe in self._probes.values():
                probe.start()
        silent = {what: one for what in self._probes if (one := self._find_silence(what)) is not None}
        for what in silent.keys() - self._reported:
            self._say(escape(silent[what].sentence))
            # It runs but does not answer.
            log.warning("server.silent", server=what, since_ms=silent[what].since_ms)
        back = {what for what in self._reported if self._probes[what].silent_since_ms() is None}
        for what in back:
            self._say(f"the {what} answers again: the run goes on")
        self._reported = (self._reported | set(silent)) - back
        return tuple(silent.values())

    def _find_silence(self, what: str) -> Silence | None:
        since_ms = self._probes[what].silent_since_ms()
        own = {server.what: server for server in self._embedded}.get(what)
        if since_ms is None or (own is not None and own.pid is None):
            return None
        if own is not None:
            server = f"the {what} (process {own.pid})"
            remedy = (
                f"if the process is frozen, resume it by `kill -CONT {own.pid}`, or end it by `kill -KILL {own.pid}`: "
                "the run then starts it again with its data. If it is not frozen, check what keeps the machine or its "
                "disk busy"
            )
            return Silence(server, since_ms, remedy)
        where = self._named_kafka.bootstrap if what == "broker" else self._named_store.endpoint
        return Silence(
            f"the {what} at {where}", since_ms, f"check that the {what} runs, and that this machine can reach it"
        )

    def pids(self) -> dict[str, int]:
        """Return the pids of the running embedded servers, by `broker` and `store`."""
        named = (("broker", self._kafka), ("store", self._store))
        return {name: server.pid for name, server in named if server is not None and server.pid is not None}

    def stop(self, timeout_s: float = 30) -> None:
        """Stop the embedded servers in parallel; kill those that SIGTERM does not end within `timeout_s`."""
        for probe in self._probes.values():
            probe.close()
        end = time.monotonic() + LONGEST_START_S
        for starter in self._starters:
            starter.join(max(0.0, end - time.monotonic()))
        if self._kafka is not None and self._kafka.is_recording_start_cache and timeout_s >= SERVERS_PATIENCE_S:
            self._say("Kafka writes its start-up cache (once, some seconds): later starts take a third of the time")
        stoppers = [threading.Thread(target=s.stop, args=(timeout_s,), daemon=True) for s in self._embedded]
        for thread in stoppers:
            thread.start()
        for thread in (*stoppers, *self._starters):
            thread.join()


class ServerRestarter:
    """Restarts one embedded server whenever it has died."""

    def __init__(self, say: ReportLine) -> None:
        self._say = say
        self._pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._has_failed = False
        self._due = 0.0
        self._reported = ""
        """The last report about a server that is down; empty while it runs."""

    def revive_if_due(self, server: ServerProcess) -> bool:
        """Start the server if it has died and a start is due; call it repeatedly. Return whether it had died."""
        if server.is_alive():
            return False
        if time.monotonic() < self._due:
            return True
        if not self._reported:
            # It is started again.
            log.warning("server.died", server=server.what)
            self._report(
                f"the {server.what} died and is started again with its data", describe_full_disk(server.folder)
            )
        try:
            server.start()
        except HeadraceError as error:  # ServerError, or its jars are deleted and the network is away
            pause = self._pauses.next_s()
            # It is tried again.
            log.info("server.not_started", server=server.what, error=str(error), again_in_s=pause)
            why = describe_full_disk(server.folder) or f": {escape(str(error))}"
            self._report(
                f"the {server.what} does not start",
                f"{why}\nThe run waits, and tries to start the server until it runs",
            )
            self._due = time.monotonic() + pause
            self._has_failed = True
        else:
            if self._has_failed:
                self._say(f"the {server.what} runs again: the run goes on")
            self._reported, self._has_failed = "", False
            self._pauses.reset()
        return True

    def _report(self, what: str, why: str) -> None:
        """Report that the disk is full or that the server does not start, unless already reported."""
        kind = FULL if FULL in why else what
        if self._reported not in (kind, FULL):
            self._say(escape(f"{what}{why}"))
            self._reported = kind


def describe_full_disk(folder: Path) -> str:
    """Return the end of a sentence about a full disk; empty if the disk has room."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return ""
    if free >= ROOM_BYTES:
        return ""
    return f": {FULL} ({free / 1e6:.0f} MB left for {folder}): make room there, and the run goes on by itself"


def await_leaders(connection: Connection, patience_s: float = SERVERS_PATIENCE_S) -> None:
    """Wait until a broker that has just started leads all its partitions.

    For some milliseconds it has new leader epochs but refuses requests with UNKNOWN_LEADER_EPOCH. Raises KafkaAway or
    KafkaRefused after `patience_s`.
    """
    end = time.monotonic() + patience_s
    while True:
        try:
            with translate_kafka_errors("listing topics"):
                topics = get_admin(connection).list_topics(timeout=5).topics
            fetch_end_offsets(
                connection, [(name, partition) for name, topic in topics.items() for partition in topic.partitions]
            )
        except (KafkaAway, KafkaRefused):
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return
