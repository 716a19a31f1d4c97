"""The relay on two real brokers and two buckets of a real store: what it copies, verifies, repeats and leaves out."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from made_run import make_run, publish, tiny_recipe

from headrace.consumers.relay.relay import PolicyRelay, read_home_offset
from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.kafka.clients import Connection, Fenced, RunAddress
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.run.run import Run
from headrace.infra.store.object_store import ObjectStore
from headrace.schemas import codec
from headrace.schemas.records import ClaimCheck, WeightsPublished

pytestmark = pytest.mark.regions


@pytest.fixture(scope="module")
def far_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(tmp_path_factory.mktemp("far-kafka")) as server:
        yield server


@pytest.fixture
def home(bootstrap: str, store: ObjectStore, run_name: str) -> Run:
    return make_run(bootstrap, store, tiny_recipe(run_name, regions={"west": {}}))


@pytest.fixture
def region(home: Run, far_kafka: EmbeddedKafka) -> Run:
    connection, recipe = Connection(far_kafka.bootstrap), home.recipe
    specs = recipe.topics.in_region("west", tuple(recipe.workflows), tuple(recipe.policies), 4, 4)
    ensure_topics(connection, specs)
    store = replace(home.store_address, bucket=f"west-{home.address.run}")
    with ObjectStore(store) as made:
        made.ensure_bucket()
    return replace(home, address=RunAddress(connection, home.address.run), store_address=store)


class Started:
    """A relay that has read what there is at home."""

    def __init__(self, home: Run, region: Run) -> None:
        topic = home.topics.weights("solver")
        self.writer = TransactionalWriter(region.connection, f"{home.address.run}.relay.west", [topic])
        self.relay = PolicyRelay(home, region, "solver", self.writer)
        for message in read_all(home.connection, [topic]):
            self.relay.fold_message(message)


def relay_all(home: Run, region: Run, folder: Path) -> list[WeightsPublished]:
    """Start a relay, let it bring what there is, and end it; return what the region has then."""
    started = Started(home, region)
    with closing(started.writer):
        started.relay.relay_pending(folder)
    return read_region(home, region)


def read_region(home: Run, region: Run) -> list[WeightsPublished]:
    found = list(read_all(region.connection, [home.topics.weights("solver")]))
    assert [read_home_offset(message) for message in found] == sorted({read_home_offset(m) for m in found})
    return [codec.decode(message.value, WeightsPublished) for message in found]


def lay(run: Run, claim: ClaimCheck, data: bytes) -> None:
    """Put bytes under the name of an object, past the checks."""
    run.store._bucket.client.put_object(run.store.address.bucket, claim.key, io.BytesIO(data), len(data))


def claim_of(event: WeightsPublished) -> ClaimCheck:
    assert event.weights is not None
    return event.weights


def test_a_version_comes_with_its_objects_and_a_second_relay_brings_nothing_twice(
    home: Run, region: Run, tmp_path: Path
) -> None:
    publish(home, 0)
    [event] = relay_all(home, region, tmp_path)
    for claim in (claim_of(event), *(file.claim for file in event.files)):
        region.store.verify(claim.key, claim.sha256, claim.size_bytes)
    assert relay_all(home, region, tmp_path) == [event]


def test_a_relay_that_died_before_its_event_goes_on_with_the_objects_that_it_has_copied(
    home: Run, region: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(home, 0)
    with monkeypatch.context() as dying:
        dying.setattr(PolicyRelay, "_publish", raises(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            relay_all(home, region, tmp_path)
    assert read_region(home, region) == []
    with monkeypatch.context() as watched:
        watched.setattr(type(home.store), "get_to_file", raises(AssertionError("it is there already")))
        [event] = relay_all(home, region, tmp_path)
    assert event.version == 0


def raises(error: BaseException | type[BaseException]) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_an_object_of_which_the_regions_store_has_other_bytes_is_copied_again(
    home: Run, region: Run, tmp_path: Path
) -> None:
    publish(home, 0)
    relay_all(home, region, tmp_path)
    publish(home, 1)
    [_, newest] = read_home(home)
    lay(region, claim_of(newest), b"x" * claim_of(newest).size_bytes)
    assert [one.version for one in relay_all(home, region, tmp_path)] == [0, 1]
    region.store.verify(claim_of(newest).key, claim_of(newest).sha256, claim_of(newest).size_bytes)


def read_home(home: Run) -> list[WeightsPublished]:
    found = read_all(home.connection, [home.topics.weights("solver")])
    return [codec.decode(message.value, WeightsPublished) for message in found]


def test_weights_that_are_lost_at_home_are_never_announced_and_the_next_whole_ones_are(
    home: Run, region: Run, tmp_path: Path
) -> None:
    publish(home, 0, corrupt=True)
    assert relay_all(home, region, tmp_path) == []
    publish(home, 1)
    assert [one.version for one in relay_all(home, region, tmp_path)] == [1]


def test_a_second_relay_of_a_region_ends_the_first(home: Run, region: Run, tmp_path: Path) -> None:
    first, second = Started(home, region), Started(home, region)
    publish(home, 0)
    for message in read_all(home.connection, [home.topics.weights("solver")]):
        first.relay.fold_message(message)
        second.relay.fold_message(message)
    with closing(first.writer), closing(second.writer):
        with pytest.raises(Fenced):
            first.relay.relay_pending(tmp_path)
        second.relay.relay_pending(tmp_path)
    assert [one.version for one in read_region(home, region)] == [0]
