"""What joining late costs, and what many workers of one machine fetch: on a real broker and a real store."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from benchmarks.weight_costs import Tell
from benchmarks.weight_sets import made, qwen3_shapes, successor
from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.embedded.store_server import EmbeddedStore
from headrace.infra.kafka.clients import Connection, RunAddress, open_producer
from headrace.infra.kafka.topic_admin import ensure_topics
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.recipe.settings import Recipe
from headrace.infra.run.revisions import build_revision, write_revision
from headrace.infra.run.run import Run, describe_store, join
from headrace.infra.store.object_cache import ObjectCache
from headrace.infra.store.object_store import ObjectStore
from headrace.infra.weights.paths import ANCHOR
from headrace.infra.weights.policy_weights import PolicyWeights
from headrace.schemas import codec
from headrace.schemas.records import ClaimCheck, WeightsPublished
from headrace.trainers.versions.publisher import VersionAnnouncer, VersionUploader

POLICY = "policy"
DENSITY = 0.01
BEHIND = 200
VERSIONS = 249
"""Published after version 0: the newest anchor is as old then as it gets."""
FOLLOWERS = 16


@dataclass(frozen=True, slots=True)
class Joined:
    """What one who joins fetches."""

    behind: int
    """Versions."""
    objects: int
    bytes: int
    of_anchor: float
    """Times the size of the newest anchor."""


@dataclass(frozen=True, slots=True)
class Joining:
    """All of it."""

    parameters: int
    joined: Joined
    followers: int
    """On one machine."""
    fetches: dict[str, int]
    """How often each object was fetched that led them to the newest version."""


class _Counting:
    """The objects of a run, counted as they are fetched."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.sizes: list[int] = []

    def get(self, claim: ClaimCheck) -> memoryview:
        self.sizes.append(claim.size_bytes)
        return memoryview(self._run.get(claim))

    def drop(self, claim: ClaimCheck) -> None:
        raise AssertionError(f"{claim.key} is not what it should be")


class _CountingStore(ObjectStore):
    """A store that counts what is fetched from it."""

    fetches: ClassVar[Counter[str]] = Counter()

    def get_to_file(self, key: str, sha256: str, size_bytes: int, path: Path) -> None:
        self.fetches[key] += 1
        super().get_to_file(key, sha256, size_bytes, path)


def measure_joining(parameters: float, tell: Tell) -> Joining:
    """Publish versions as a trainer does, and join as a worker does."""
    with open_run() as run:
        count = _publish(run, parameters, tell)
        events = _events(run)
        return Joining(count, _join(run, events), FOLLOWERS, _follow(run, events))


@contextmanager
def open_run() -> Iterator[Run]:
    """Begin a run with servers of its own, of which only the weights are used."""
    recipe = Recipe.model_validate(
        {
            "name": "joining",
            "policies": {POLICY: {"path": "none"}},
            "workflows": {"sums": {"env": {"use": "arithmetic"}, "policies": {"solver": POLICY}}},
        }
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-joining-")))
        kafka = stack.enter_context(EmbeddedKafka(folder / "kafka"))
        store_address = stack.enter_context(EmbeddedStore(folder / "store")).address("joining")
        with ObjectStore(store_address) as store:
            store.ensure_bucket()
        address = RunAddress(Connection(kafka.bootstrap), recipe.name)
        ensure_topics(
            address.connection,
            recipe.topics.all(tuple(recipe.workflows), tuple(recipe.policies), recipe.kafka.partitions),
        )
        text = describe_store(store_address)
        write_revision(address.connection, recipe.topics.recipe, build_revision("run-1", 0, recipe, text))
        yield join(address)


def _publish(run: Run, parameters: float, tell: Tell) -> int:
    """Publish `VERSIONS` after the first; return how many values each has."""
    weights = made(qwen3_shapes(parameters))
    uploader, announcer = VersionUploader(run, POLICY, ()), VersionAnnouncer(run, POLICY)
    producer = open_producer(run.connection, "publisher")
    for version in range(VERSIONS + 1):
        event = uploader.upload_version(weights.tensors, version)
        message = announcer.build_message(event)
        producer.produce(message.topic, message.value, message.key, message.partition)
        assert producer.flush(30) == 0, "Kafka does not answer"  # noqa: S101 - nothing is measured then
        weights = successor(weights, DENSITY, seed=version)
        if version % 50 == 0:
            tell(f"version {version} is published")
    return len(weights.items)


def _events(run: Run) -> list[WeightsPublished]:
    found = read_all(run.connection, [run.topics.weights(POLICY)])
    return [codec.decode(message.value, WeightsPublished) for message in found]


def _join(run: Run, events: Sequence[WeightsPublished]) -> Joined:
    """Hold the weights of `BEHIND` versions before the newest, and go on from there."""
    published = {event.version: event for event in events}
    newest, objects = published[VERSIONS], _Counting(run)
    held = PolicyWeights(objects)
    held.load_version(events, published[VERSIONS - BEHIND])
    objects.sizes.clear()
    held.load_version(events, newest)
    anchor = max((event for event in events if event.kind == ANCHOR), key=lambda event: event.version)
    assert anchor.weights is not None  # noqa: S101 - the publisher gave it one
    fetched = sum(objects.sizes)
    return Joined(BEHIND, len(objects.sizes), fetched, fetched / anchor.weights.size_bytes)


def _follow(run: Run, events: Sequence[WeightsPublished]) -> dict[str, int]:
    """Let all followers of one machine go to the newest version at once; each has a cache object of its own."""
    target = max(events, key=lambda event: event.version)
    _CountingStore.fetches = Counter()

    def follow(folder: Path) -> None:
        with _CountingStore(run.store_address) as store:
            PolicyWeights(ObjectCache(store, folder, most_bytes=1 << 34)).load_version(events, target)

    with tempfile.TemporaryDirectory(prefix="headrace-cache-") as folder, ThreadPoolExecutor(FOLLOWERS) as pool:
        for done in [pool.submit(follow, Path(folder)) for _ in range(FOLLOWERS)]:
            done.result()
    return dict(_CountingStore.fetches)
