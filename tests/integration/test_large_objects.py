"""Objects of several parts: sent once, seen whole or not at all, through a store that is killed in the middle."""

from __future__ import annotations

import errno
import io
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256

import pytest
import structlog
from made_run import tiny_recipe
from patience import PATIENCE_S
from stoppable import until
from tcp_proxy import TcpProxy
from test_servers import gone

from headrace.infra.embedded.store_server import EmbeddedStore
from headrace.infra.kafka.clients import Connection, RunAddress
from headrace.infra.run.run import STORE_NAME, Run
from headrace.infra.store.object_store import UPLOAD_PART_BYTES, ObjectStore, StoreAddress
from headrace.schemas.records import ClaimCheck

LONG_S = 60.0
"""A busy machine is none that is away."""
N_PARTS = 4
"""Three go up at once: the fourth when one has been taken in."""


@dataclass(frozen=True)
class Mortal:
    """A store of the test's own."""

    address: StoreAddress
    kill: Callable[[], None]
    """Returns when it is dead."""
    start: Callable[[], object]
    begun: Callable[[str], list[str]]
    """Uploads of a key that did not end and were not given up, while it runs."""
    sweeps: bool = False
    """Whether what it had begun when it was killed is gone when it starts; MinIO takes a day."""


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortal]:
    with EmbeddedStore(tmp_path_factory.mktemp("mortal")) as server:

        def kill() -> None:
            pid = server.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert gone(pid, PATIENCE_S)

        def begun(_key: str) -> list[str]:
            return [path.name for path in (server.folder / "data").rglob(".*")]

        address = server.address("headrace-tests")
        with ObjectStore(address) as store:
            store.ensure_bucket()
        yield Mortal(address, kill, server.start, begun, sweeps=True)


@pytest.fixture
def between(mortal: Mortal) -> Iterator[TcpProxy]:
    with TcpProxy(mortal.address.endpoint) as proxy:
        yield proxy


@pytest.fixture
def behind(mortal: Mortal, between: TcpProxy) -> Iterator[ObjectStore]:
    """The store, asked through the proxy."""
    with ObjectStore(replace(mortal.address, endpoint=between.address), timeout_s=LONG_S) as store:
        yield store


@pytest.fixture
def direct(mortal: Mortal) -> Iterator[ObjectStore]:
    with ObjectStore(mortal.address, timeout_s=LONG_S) as store:
        yield store


def large() -> tuple[bytes, str]:
    """Bytes that no test has sent, and their key."""
    data = os.urandom(N_PARTS * UPLOAD_PART_BYTES)
    return data, f"weights/{sha256(data).hexdigest()}"


def at(
    between: TcpProxy, way: str, n_parts: float, do: Callable[[], None], when: Callable[[], object] = lambda: True
) -> threading.Event:
    """Do something, once, before a byte goes on that so many parts lie before, as soon as something else is so too."""
    done, lock, begin = threading.Event(), threading.Lock(), between.passed[way]

    def look() -> None:
        with lock:
            if not done.is_set() and between.passed[way] - begin > n_parts * UPLOAD_PART_BYTES and when():
                do()
                done.set()

    between.before_passing = look
    return done


def test_an_object_of_several_parts_is_sent_once(behind: ObjectStore, between: TcpProxy) -> None:
    data, _ = large()
    stored = behind.put(data, "weights")
    sent = between.passed["up"]
    assert sent > len(data)
    assert behind.put(data, "weights") == stored
    assert between.passed["up"] - sent < UPLOAD_PART_BYTES // 100
    assert behind.get(stored.key, stored.sha256, stored.size_bytes) == data


class Breaking(io.BytesIO):
    """A file on a disk that fails behind its first part."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() >= UPLOAD_PART_BYTES:
            raise OSError(errno.EIO, "the disk fails")
        return super().read(size)


@pytest.mark.weights
def test_of_an_upload_that_is_broken_off_nothing_is_left(behind: ObjectStore, mortal: Mortal) -> None:
    data, key = large()
    with pytest.raises(OSError, match="the disk fails"):
        behind._bucket.upload(key, len(data), lambda: Breaking(data))
    assert not behind.has_object(key)
    assert mortal.begun(key) == []


@pytest.mark.weights
def test_an_upload_over_a_killed_store_ends_with_the_object_whole_and_is_not_seen_before(
    behind: ObjectStore, direct: ObjectStore, between: TcpProxy, mortal: Mortal, run_name: str
) -> None:
    data, key = large()
    run = Run(RunAddress(Connection("127.0.0.1:1"), run_name), run_name, (tiny_recipe(run_name),), behind.address)
    claims: list[ClaimCheck] = []

    def kill() -> None:
        mortal.kill()
        between.mode = "cut"

    killed = at(between, "up", 3.1, kill, when=lambda: not mortal.sweeps or mortal.begun(key))
    with structlog.testing.capture_logs() as logs:
        upload = threading.Thread(target=lambda: claims.append(run.put(data, "weights")), daemon=True)
        upload.start()
        until(lambda: killed.is_set() or not upload.is_alive(), "the store is killed")
        assert killed.is_set()
        if mortal.sweeps:
            assert mortal.begun(key), "files can be looked at"
        mortal.start()
        direct.wait_ready(PATIENCE_S)
        assert not direct.has_object(key)
        if mortal.sweeps:
            assert mortal.begun(key) == []
        until(lambda: any(line["event"] == "store.waiting" for line in logs), "the wait is said")
        assert not claims
        between.mode = "pass"
        upload.join(PATIENCE_S)

    assert claims == [ClaimCheck(STORE_NAME, key, sha256(data).hexdigest(), len(data))]
    assert run.get(claims[0]) == data
