"""One real broker and one real object store per test session; names and keys are fresh in every test.

With `--servers=containers` they are Kafka and MinIO in containers, for the very same tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from infra.embedded_kafka import EmbeddedKafka
from infra.embedded_store import EmbeddedStore
from infra.object_store import ObjectStore, StoreAddress

BUCKET = "headrace-tests"


def are_in_containers(config: pytest.Config) -> bool:
    return bool(config.getoption("--servers") == "containers")


@pytest.fixture(scope="session")
def kafka_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    if are_in_containers(request.config):
        pytest.skip("it is about the embedded broker")
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(scope="session")
def store_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    if are_in_containers(request.config):
        pytest.skip("it is about the embedded store")
    with EmbeddedStore(tmp_path_factory.mktemp("store")) as server:
        with ObjectStore(server.address(BUCKET)) as store:
            store.ensure_bucket()
        yield server


@pytest.fixture(scope="session")
def in_containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, StoreAddress]]:
    """Bootstrap and store."""
    from servers import both

    with both(tmp_path_factory.mktemp("toxiproxy") / "log.txt", BUCKET) as (kafka, (_, address)):
        yield kafka.link.address, address


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    if are_in_containers(request.config):
        found: str = request.getfixturevalue("in_containers")[0]
        return found
    server: EmbeddedKafka = request.getfixturevalue("kafka_server")
    return server.bootstrap


@pytest.fixture(scope="session")
def store_address(request: pytest.FixtureRequest) -> StoreAddress:
    """A bucket for all tests, each of which takes a prefix of its own."""
    if are_in_containers(request.config):
        found: StoreAddress = request.getfixturevalue("in_containers")[1]
        return found
    server: EmbeddedStore = request.getfixturevalue("store_server")
    return server.address(BUCKET)


@pytest.fixture
def store(store_address: StoreAddress, run_name: str) -> Iterator[ObjectStore]:
    with ObjectStore(replace(store_address, prefix=f"{run_name}/")) as store:
        yield store
