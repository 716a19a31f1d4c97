"""Kafka and MinIO in containers, under the names of the fixtures that the embedded ones have in tests/integration.

Where there is no Docker the whole lane is skipped; with CI=true, whatever keeps it from running is an error.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest

from headrace.infra.store.object_store import ObjectStore, StoreAddress

if TYPE_CHECKING:
    from servers import Server
    from test_large_objects import Mortal

BUCKET = "headrace-tests"


@cache
def hindrance() -> str:
    """Say what keeps the lane from running; nothing when it can."""
    import docker
    from docker.errors import DockerException

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the package leaves the socket of a failed attempt open
        try:
            docker.from_env(timeout=120).close()
        except DockerException as error:
            reason = f"no Docker can be used ({error})"
        else:
            reason = ""
        gc.collect()
    if reason:
        return reason
    from build_images import lacking

    missing = lacking()
    return f"{', '.join(missing)} must be built first: `make test-containers`" if missing else ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    if reason := hindrance():
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)  # from here, not from a fixture: one line for all of them


@pytest.fixture(scope="session")
def in_containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, tuple[Server, StoreAddress]]]:
    from servers import both

    with both(tmp_path_factory.mktemp("toxiproxy") / "log.txt", BUCKET) as servers:
        yield servers


@pytest.fixture(scope="session")
def kafka_server(in_containers: tuple[Server, tuple[Server, StoreAddress]]) -> Server:
    return in_containers[0]


@pytest.fixture(scope="session")
def minio_server(in_containers: tuple[Server, tuple[Server, StoreAddress]]) -> tuple[Server, StoreAddress]:
    return in_containers[1]


@pytest.fixture(scope="session")
def bootstrap(kafka_server: Server) -> str:
    return kafka_server.link.address


@pytest.fixture
def store(minio_server: tuple[Server, StoreAddress], run_name: str) -> Iterator[ObjectStore]:
    with ObjectStore(replace(minio_server[1], prefix=f"{run_name}/")) as store:
        yield store


@pytest.fixture
def mortal(minio_server: tuple[Server, StoreAddress]) -> Mortal:
    from test_large_objects import Mortal

    server, address = minio_server

    def kill() -> None:
        server.container.kill()
        server.container.wait()

    def begun(key: str) -> list[str]:
        with ObjectStore(address) as store:
            found = store._bucket.client._list_multipart_uploads(address.bucket, prefix=key)
        return [upload.upload_id or "" for upload in found.uploads]

    return Mortal(address, kill, server.container.start, begun)
