"""A curator whose broker is 100 ms away, as in another region: its transactions stay well under their limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import pytest
from made_records import played
from made_run import make_run, tiny_recipe
from said import say
from tcp_proxy import TcpProxy
from test_issued_numbers import issue

from headrace.consumers.curate.curator import open_curator
from headrace.consumers.curate.issued_numbers import IssuedNumbers
from headrace.consumers.curate.published_versions import PublishedVersions
from headrace.infra.embedded.kafka_server import EmbeddedKafka
from headrace.infra.kafka.clients import TRANSACTION_TIMEOUT_MS, Connection, Outgoing
from headrace.infra.kafka.run_loop import run_loop
from headrace.infra.kafka.topic_reader import read_all
from headrace.infra.kafka.transactions import TransactionalWriter
from headrace.infra.run.run import Run
from headrace.infra.stopwatch import Stopwatch
from headrace.infra.store.object_store import ObjectStore
from headrace.schemas import codec
from headrace.schemas.records import TrajectoryGroup, WeightsPublished

pytestmark = pytest.mark.faults

ROUND_TRIP_S = 0.1
GROUP_BYTES = 131_000
PATIENCE_S = 120
LIMIT_S = TRANSACTION_TIMEOUT_MS / 1000


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TcpProxy, str]]:
    """A broker that nobody comes to but through the proxy."""
    with TcpProxy() as between:
        advertised = {"advertised.listeners": f"PLAINTEXT://{between.address}"}
        with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), config=advertised) as server:
            between.target = server.bootstrap
            yield between, between.address


class Timed(TransactionalWriter):
    """Notes how long each transaction is open."""

    def __init__(self, connection: Connection, transactional_id: str) -> None:
        self.open_s: list[float] = []
        self._since = 0.0
        super().__init__(connection, transactional_id)

    def begin(self) -> None:
        self._since = time.monotonic()
        super().begin()

    def commit(self) -> None:
        super().commit()
        self.open_s.append(time.monotonic() - self._since)


def large(one: Outgoing) -> Outgoing:
    """The same group with trajectories of so many tokens that no codec makes smaller."""
    group = codec.decode(one.value, TrajectoryGroup)
    drawn = np.random.default_rng(group.number)
    n = GROUP_BYTES // 8 // len(group.trajectories)
    members = [
        replace(
            member,
            sequences=tuple(
                replace(
                    sequence,
                    ids=drawn.integers(0, 2**31, n, np.int32),
                    logprobs=-drawn.random(n, np.float32),
                    version_runs=np.array([-1, 2, 0, n - 2], np.int32),
                    spans=(sequence.spans[0], replace(sequence.spans[1], length=n - 2)),
                )
                for sequence in member.sequences
            ),
        )
        for member in group.trajectories
    ]
    return replace(one, value=codec.encode(replace(group, trajectories=tuple(members))))


@contextmanager
def far_away(between: TcpProxy) -> Iterator[None]:
    """Connections that are opened in the block come to the broker half a round trip later, and so do its answers."""
    between.delay_s = ROUND_TRIP_S / 2
    try:
        yield
    finally:
        between.delay_s = 0.0


@contextmanager
def curating(run: Run) -> Iterator[Timed]:
    """A curator, in a thread."""
    stop, given = threading.Event(), (PublishedVersions(run, "solver"), IssuedNumbers(run))
    with (
        closing(Timed(run.connection, f"{run.topics.curate_group('solver')}.0")) as writer,
        closing(open_curator(run, "solver", *given)) as consumer,
    ):
        loop = threading.Thread(target=run_loop, args=(consumer, writer, stop, Stopwatch()), daemon=True)
        loop.start()
        try:
            yield writer
        finally:
            stop.set()
            loop.join(60)


def begun(bootstrap: str, store: ObjectStore, name: str, partitions: int, numbers: int) -> Run:
    recipe = tiny_recipe(name, kafka={"partitions": partitions})
    run = make_run(bootstrap, store, recipe, asks_for_published=True, asks_for_issued=True)
    weights = WeightsPublished(run_id=run.run_id, policy="solver", version=0)
    say(run, Outgoing(run.topics.weights("solver"), codec.encode(weights), partition=0))
    issue(run, 0, numbers)
    return run


def wait_for(run: Run, numbers: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while (curated := sum(1 for _ in read_all(run.connection, [run.topics.outcomes("solver")]))) < numbers:
        assert time.monotonic() < end, f"{curated} of {numbers} are curated"


def test_a_transaction_with_131_kb_for_each_of_64_partitions_stays_under_half_of_its_limit(
    far: tuple[TcpProxy, str], store: ObjectStore, run_name: str
) -> None:
    between, bootstrap = far
    run = begun(bootstrap, store, run_name, 64, 64)
    say(run, *(large(one) for one in played(run, range(64))))
    with far_away(between), curating(run) as writer:
        wait_for(run, 64)
    assert max(writer.open_s) < LIMIT_S / 2, writer.open_s
