"""When a trainer publishes a whole anchor: by number, by the bytes of deltas since, and where no delta leads."""

from __future__ import annotations

import io
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from made_run import make_run, tiny_recipe

from headrace.infra.store.object_cache import Uncached
from headrace.infra.store.object_store import ObjectStore
from headrace.infra.weights.paths import ANCHOR, DELTA, WHOLE, list_claims, size_of
from headrace.infra.weights.policy_weights import PolicyWeights
from headrace.infra.weights.tensors import Tensor, hash_weights
from headrace.schemas.records import WeightsPublished
from headrace.trainers.versions.publisher import VersionUploader

VALUES = 20_000


class Published:
    """An uploader whose recipe has an anchor policy, and versions that differ in as many values as is said."""

    def __init__(self, bootstrap: str, store: ObjectStore, name: str, **policy: Any) -> None:
        trainer = {"steps": 100, "groups_per_batch": 4, "minibatches": 2, "learning_rate": 1e-3, **policy}
        self.uploader = VersionUploader(make_run(bootstrap, store, tiny_recipe(name, trainer=trainer)), "solver", ())
        self.items = np.random.default_rng(0).integers(0, 1 << 16, VALUES).astype("<u2")
        self.version = -1

    def next(self, changed: int = 10, *, values: int = VALUES, epoch: int = 0) -> WeightsPublished:
        self.items[np.random.default_rng(self.version + 2).integers(0, VALUES, changed)] += 1
        self.version += 1
        data = memoryview(self.items[:values].tobytes())
        return self.uploader.upload_version({"w": Tensor("BF16", (values,), data)}, self.version, epoch=epoch)


def kinds(events: list[WeightsPublished]) -> list[str]:
    return [event.kind for event in events]


@pytest.mark.weights
def test_every_third_version_is_an_anchor_where_that_is_asked_and_so_is_the_first_of_an_epoch(
    bootstrap: str, store: ObjectStore, run_name: str
) -> None:
    published = Published(bootstrap, store, run_name, anchor_every=3)
    assert kinds([published.next() for _ in range(5)]) == [ANCHOR, DELTA, DELTA, ANCHOR, DELTA]
    assert kinds([published.next(epoch=1) for _ in range(4)]) == [ANCHOR, DELTA, DELTA, ANCHOR]


@pytest.mark.weights
def test_an_anchor_comes_when_one_more_delta_would_pass_the_share(
    bootstrap: str, store: ObjectStore, run_name: str
) -> None:
    published = Published(bootstrap, store, run_name, anchor_every=100, anchor_share=0.25)
    events = [published.next(2_000) for _ in range(20)]
    runs = [[size_of(e) for e in found] for kind, found in groupby(events, key=lambda e: e.kind) if kind == DELTA]
    most = 0.25 * size_of(events[0])
    assert len(runs) > 2
    for sizes in runs:
        assert sum(sizes) <= most
    for sizes in runs[:-1]:
        assert sum(sizes) + max(map(max, runs)) > most, "and not sooner"


@pytest.mark.weights
def test_with_no_share_every_version_is_an_anchor(bootstrap: str, store: ObjectStore, run_name: str) -> None:
    published = Published(bootstrap, store, run_name, anchor_share=0)
    assert kinds([published.next() for _ in range(3)]) == [ANCHOR] * 3


@pytest.mark.weights
def test_a_tensor_of_another_shape_takes_an_anchor_and_deltas_go_on_from_there(
    bootstrap: str, store: ObjectStore, run_name: str
) -> None:
    published = Published(bootstrap, store, run_name)
    events = [published.next(), published.next(), published.next(values=10_000), published.next(values=10_000)]
    assert kinds(events) == [ANCHOR, DELTA, ANCHOR, DELTA]
    assert events[3].base_hash == events[2].weights_hash


def load_version(store: ObjectStore, ways: list[WeightsPublished]) -> str:
    """Be a new worker, and return the hash of what it gets."""
    return hash_weights(PolicyWeights(Uncached(store)).load_version(ways, ways[-1]))


@pytest.mark.weights
@pytest.mark.parametrize("lost", range(4))
def test_a_version_to_which_an_object_is_lost_is_published_whole_and_the_next_deltas_lead_on_from_there(
    bootstrap: str, store: ObjectStore, run_name: str, lost: int
) -> None:
    published = Published(bootstrap, store, run_name)
    events = [published.next() for _ in range(4)]
    store.delete(list_claims(events[lost])[0].key)

    whole = published.uploader.reupload_lost_version(read=False)
    assert whole is not None
    assert (whole.kind, whole.version, whole.weights_hash) == (WHOLE, 3, events[-1].weights_hash)
    assert published.uploader.reupload_lost_version(read=True) is None, "once is enough"
    after = published.next()
    assert after.kind == DELTA
    assert load_version(store, [*events, whole, after]) == after.weights_hash


@pytest.mark.weights
@pytest.mark.parametrize("altered", range(2))
def test_an_object_that_was_altered_shows_when_it_is_read_and_the_same_one_is_stored_anew(
    bootstrap: str, store: ObjectStore, run_name: str, altered: int
) -> None:
    published = Published(bootstrap, store, run_name)
    events = [published.next() for _ in range(altered + 1)]
    claim = list_claims(events[altered])[0]
    other = b"x" * claim.size_bytes
    store._bucket.upload(claim.key, len(other), lambda: io.BytesIO(other))

    assert published.uploader.reupload_lost_version(read=False) is None
    whole = published.uploader.reupload_lost_version(read=True)
    assert whole is not None
    assert load_version(store, [*events, whole, published.next()])
