"""A store that cuts one object short for ever: the object counts as lost, and workers and trainer go round it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from headrace.infra.recipe.settings import TrainerSettings
from headrace.infra.run.run import Run
from headrace.infra.store.object_cache import Uncached
from headrace.infra.store.object_store import ObjectMissing, ObjectStore, StoreAddress, StoreUnavailable
from headrace.infra.store.unread_objects import LOST_AFTER_S
from headrace.infra.weights.paths import WHOLE, list_claims
from headrace.infra.weights.policy_weights import BadWeights, PolicyWeights
from headrace.infra.weights.tensors import Tensor
from headrace.schemas.records import ClaimCheck
from headrace.trainers.versions.publisher import VersionUploader

LISTED = "<ListBucketResult><Name>b</Name>{}</ListBucketResult>"


@dataclass
class CuttingStore:
    """An S3 store in memory that cuts some objects short, and may be away; `now` is the client's clock."""

    objects: dict[str, bytes] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    is_away: bool = False
    now: float = 0.0

    def list_all(self) -> bytes:
        found = (f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in self.objects)
        return LISTED.format("".join(found)).encode()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path, _, query = handler.path.partition("?")
        key = path.removeprefix("/bucket/")
        if handler.command == "PUT":
            self.objects[key] = handler.rfile.read(int(handler.headers["Content-Length"]))
            self.cut.discard(key)
        data = self.list_all() if "list-type" in query else self.objects.get(key)
        handler.send_response(503 if self.is_away else 404 if data is None else 200)
        data = b"" if self.is_away or handler.command == "PUT" else data
        handler.send_header("ETag", '"e"')
        handler.send_header("Content-Type", "application/xml")
        handler.send_header("Content-Length", str(len(data or b"")))
        handler.end_headers()
        if data and handler.command == "GET":
            handler.wfile.write(data[: len(data) // 2] if key in self.cut else data)


@pytest.fixture
def server() -> Iterator[tuple[CuttingStore, ObjectStore]]:
    made = CuttingStore()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.answer(self)

        do_HEAD = do_PUT = do_GET  # noqa: N815 - the names that http.server looks for

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        where = StoreAddress(f"127.0.0.1:{http.server_port}", "bucket", "key", "secret")
        with ObjectStore(where, timeout_s=2, clock=lambda: made.now) as store:
            yield made, store
        http.shutdown()


def weights(version: int) -> dict[str, Tensor]:
    values = np.arange(4000, dtype="<u2")
    values[:version] += 1
    return {"w": Tensor("BF16", (4000,), memoryview(values.tobytes()))}


def uploader_to(store: ObjectStore) -> VersionUploader:
    def put(data: Any, kind: Any, suffix: str = "", *_: object, anew: bool = False) -> ClaimCheck:
        stored = store.compute_stored_object(data, kind, suffix)
        store.put_named(stored, data, anew=anew)
        return ClaimCheck("main", stored.key, stored.sha256, stored.size_bytes)

    recipe = SimpleNamespace(trainer_of=lambda _: TrainerSettings(anchor_share=1000))
    return VersionUploader(cast("Run", SimpleNamespace(run_id="r", recipe=recipe, store=store, put=put)), "solver", ())


def test_an_object_cut_short_for_ever_is_gone_round_by_workers_and_published_whole_by_the_trainer(
    server: tuple[CuttingStore, ObjectStore],
) -> None:
    made, store = server
    uploader = uploader_to(store)
    events = [uploader.upload_version(weights(version), version) for version in range(2)]
    made.cut |= {claim.key for claim in list_claims(events[1])}
    held = PolicyWeights(Uncached(store))
    held.load_version(events, events[0])
    for made.now in (0.0, LOST_AFTER_S / 2):
        with pytest.raises(StoreUnavailable):
            held.load_version(events, events[1])
    made.now = LOST_AFTER_S
    with pytest.raises(BadWeights, match="It counts as lost: for 60 s it could not be read, but other objects could"):
        held.load_version(events, events[1])
    again = uploader.reupload_lost_version(read=True)
    assert again is not None
    assert (again.kind, again.version) == (WHOLE, 1)
    assert held.load_version([*events, again], events[1]) == weights(1)


def test_an_object_that_cannot_be_read_because_the_store_is_away_is_not_lost(
    server: tuple[CuttingStore, ObjectStore],
) -> None:
    made, store = server
    other, wanted = (store.put(data, "groups") for data in (b"other", b"wanted"))
    made.is_away = True
    for made.now in (0.0, LOST_AFTER_S, 2 * LOST_AFTER_S):
        with pytest.raises(StoreUnavailable):
            store.get(wanted.key, wanted.sha256, wanted.size_bytes)
    made.is_away = False
    made.cut |= {wanted.key}
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            store.get(wanted.key, wanted.sha256, wanted.size_bytes)
    made.now += LOST_AFTER_S
    with pytest.raises(ObjectMissing):  # another object is found by listing
        store.get(wanted.key, wanted.sha256, wanted.size_bytes)
    made.cut.clear()
    assert store.get(wanted.key, wanted.sha256, wanted.size_bytes) == b"wanted"
    assert other.key in made.objects
