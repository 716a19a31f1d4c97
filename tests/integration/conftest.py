"""One real broker and one real object store per test session; names and keys are fresh in every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.embedded_kafka import EmbeddedKafka
from infra.embedded_store import EmbeddedStore
from infra.object_store import ObjectStore


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(scope="session")
def bootstrap(kafka_server: EmbeddedKafka) -> str:
    return kafka_server.bootstrap


@pytest.fixture(scope="session")
def store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    with EmbeddedStore(tmp_path_factory.mktemp("store")) as server:
        with ObjectStore(server.address("headrace-tests")) as store:
            store.ensure_bucket()
        yield server


@pytest.fixture
def store(store_server: EmbeddedStore, run_name: str) -> Iterator[ObjectStore]:
    with ObjectStore(store_server.address("headrace-tests", prefix=f"{run_name}/")) as store:
        yield store
