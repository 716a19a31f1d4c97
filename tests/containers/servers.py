"""Kafka and MinIO in containers, each behind a link that a test can disturb."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import psutil
from build_images import image, toxiproxy_program
from docker.models.containers import Container
from testcontainers.community.kafka import KafkaContainer
from testcontainers.community.minio import MinioContainer
from testcontainers.core.config import ConnectionMode, testcontainers_config
from testcontainers.core.container import DockerContainer
from toxiproxy import Link, Toxiproxy, free_port

from headrace.infra.embedded.kafka_server import broker_settings
from headrace.infra.embedded.loopback_ports import HOST
from headrace.infra.store.object_store import ObjectStore, StoreAddress

OWNER_LABEL = "headrace.test.owner"
"""Process that a container works for."""
KAFKA_PORT, MINIO_PORT = 9093, 9000
START_S = 120

# The reaper's image may be out of reach; what a killed run leaves is removed by the next. In a container of its own the
# library would hand out the bridge's address, where nothing is published.
testcontainers_config.ryuk_disabled = True
testcontainers_config.tc_host_override = HOST
testcontainers_config.connection_mode_override = ConnectionMode.docker_host


@dataclass(frozen=True)
class Server:
    """One server that can be made to fail."""

    container: Container
    link: Link


class _Broker(KafkaContainer):
    """Advertises the link's port: clients would leave the proxy after their first question otherwise."""

    def __init__(self, link: Link) -> None:
        super().__init__(image("kafka"))
        self._link = link

    def get_exposed_port(self, _port: int) -> int:
        return self._link.port


@contextmanager
def both(log: Path, bucket: str) -> Iterator[tuple[Server, tuple[Server, StoreAddress]]]:
    """Run Kafka and MinIO behind a proxy of their own, which writes a log."""
    remove_leftovers()
    with Toxiproxy(toxiproxy_program(), log) as proxy, kafka(proxy) as broker, minio(proxy, bucket) as store:
        yield broker, store


@contextmanager
def kafka(proxy: Toxiproxy) -> Iterator[Server]:
    """Run Kafka, set as the embedded one is."""
    port = free_port()
    link = proxy.link("kafka", f"{HOST}:{port}")
    container = _Broker(link).with_kraft()
    for key, value in broker_settings().items():
        container.with_env(f"KAFKA_{key.replace('.', '_').upper()}", value)
    with _running(container, KAFKA_PORT, port):
        container.start(timeout=START_S)
        yield Server(container.get_wrapped_container(), link)


@contextmanager
def minio(proxy: Toxiproxy, bucket: str) -> Iterator[tuple[Server, StoreAddress]]:
    """Run MinIO; the bucket is there."""
    port = free_port()
    link = proxy.link("minio", f"{HOST}:{port}")
    container = MinioContainer(image("minio"), access_key="headrace", secret_key="headrace-secret")
    with _running(container, MINIO_PORT, port):
        container.start()
        address = StoreAddress(link.address, bucket, container.access_key, container.secret_key)
        with ObjectStore(address) as store:
            store.wait_ready(START_S)
            store.ensure_bucket()
        yield Server(container.get_wrapped_container(), link), address


@contextmanager
def minio_with_tls(certificates: Path) -> Iterator[tuple[str, str, str]]:
    """Run MinIO with `public.crt` and `private.key` of a folder; its address and its root's keys."""
    port, keys = free_port(), ("headrace", "headrace-secret")
    container = (
        DockerContainer(image("minio"))
        .with_command(f"server /data --address :{MINIO_PORT} --certs-dir /certs")
        .with_env("MINIO_ROOT_USER", keys[0])
        .with_env("MINIO_ROOT_PASSWORD", keys[1])
        .with_volume_mapping(str(certificates), "/certs", "ro")
    )
    with _running(container, MINIO_PORT, port):
        container.start()
        yield (f"{HOST}:{port}", *keys)


@contextmanager
def _running(container: Any, inner: int, outer: int) -> Iterator[None]:
    """Publish on loopback and on a port that stays the same when the container is started again."""
    container.ports = {f"{inner}/tcp": (HOST, outer)}
    container.with_kwargs(labels={OWNER_LABEL: str(os.getpid())})
    try:
        yield
    finally:
        container.stop()


def remove_leftovers() -> None:
    """Remove containers whose test process was killed before it could."""
    with closing(docker.from_env(timeout=120)) as client:
        for container in client.containers.list(all=True, filters={"label": OWNER_LABEL}):
            if not psutil.pid_exists(int(container.labels[OWNER_LABEL])):
                container.remove(force=True, v=True)
