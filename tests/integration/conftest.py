"""One real broker and one real object store per test session; names and keys are fresh in every test.

With `--servers=containers` they are Kafka and MinIO in containers, for the very same tests; with `--servers=FILE` those
that the file names, which run already.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.embedded.store_server import EmbeddedStore
from headrace.infra.store.object_store import ObjectStore, StoreAddress

BUCKET = "headrace-tests"


def servers(config: pytest.Config) -> str:
    return str(config.getoption("--servers"))


@pytest.fixture(scope="session")
def kafka_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    if servers(request.config) != "embedded":
        pytest.skip("it is about the embedded broker")
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture(scope="session")
def store_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedStore]:
    if servers(request.config) != "embedded":
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
def elsewhere(request: pytest.FixtureRequest) -> tuple[str, StoreAddress] | None:
    """Bootstrap and store that are not started here; None when they are."""
    match servers(request.config):
        case "embedded":
            return None
        case "containers":
            found: tuple[str, StoreAddress] = request.getfixturevalue("in_containers")
            return found
        case file:
            named = json.loads(Path(file).read_text())
            return named["bootstrap"], StoreAddress(**named["store"])


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest, elsewhere: tuple[str, StoreAddress] | None) -> str:
    if elsewhere is not None:
        return elsewhere[0]
    server: EmbeddedKafka = request.getfixturevalue("kafka_server")
    return server.bootstrap


@pytest.fixture(scope="session")
def store_address(request: pytest.FixtureRequest, elsewhere: tuple[str, StoreAddress] | None) -> StoreAddress:
    """A bucket for all tests, each of which takes a prefix of its own."""
    if elsewhere is not None:
        return elsewhere[1]
    server: EmbeddedStore = request.getfixturevalue("store_server")
    return server.address(BUCKET)


@pytest.fixture
def store(store_address: StoreAddress, run_name: str) -> Iterator[ObjectStore]:
    with ObjectStore(replace(store_address, prefix=f"{run_name}/")) as store:
        yield store


@pytest.fixture
def trainers() -> Iterator[list[BaseProcess]]:
    """Trainers that are ended with the test."""
    started: list[BaseProcess] = []
    yield started
    for process in started:
        process.kill()
        process.join()
