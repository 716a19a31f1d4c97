"""When a trainer publishes a whole anchor: by number, by the bytes of deltas since, and where no delta leads."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
from made_run import make_run, tiny_recipe

from headrace.infra.store.object_store import ObjectStore
from headrace.infra.weights.paths import ANCHOR, DELTA, size_of
from headrace.infra.weights.tensors import Tensor
from headrace.schemas.records import WeightsPublished
from headrace.trainers.versions.publisher import Publisher

VALUES = 20_000


class Published:
    """A publisher whose recipe has an anchor policy, and versions that differ in as many values as is said."""

    def __init__(self, bootstrap: str, store: ObjectStore, name: str, **policy: Any) -> None:
        trainer = {"steps": 100, "groups_per_batch": 4, "minibatches": 2, "learning_rate": 1e-3, **policy}
        self.publisher = Publisher(make_run(bootstrap, store, tiny_recipe(name, trainer=trainer)), "solver", ())
        self.items = np.random.default_rng(0).integers(0, 1 << 16, VALUES).astype("<u2")
        self.version = -1

    def next(self, changed: int = 10, *, values: int = VALUES, epoch: int = 0) -> WeightsPublished:
        self.items[np.random.default_rng(self.version + 2).integers(0, VALUES, changed)] += 1
        self.version += 1
        data = memoryview(self.items[:values].tobytes())
        return self.publisher.publish({"w": Tensor("BF16", (values,), data)}, self.version, epoch=epoch)


def kinds(events: list[WeightsPublished]) -> list[str]:
    return [event.kind for event in events]


def test_every_third_version_is_an_anchor_where_that_is_asked_and_so_is_the_first_of_an_epoch(
    bootstrap: str, store: ObjectStore, run_name: str
) -> None:
    published = Published(bootstrap, store, run_name, anchor_every=3)
    assert kinds([published.next() for _ in range(5)]) == [ANCHOR, DELTA, DELTA, ANCHOR, DELTA]
    assert kinds([published.next(epoch=1) for _ in range(4)]) == [ANCHOR, DELTA, DELTA, ANCHOR]


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


def test_with_no_share_every_version_is_an_anchor(bootstrap: str, store: ObjectStore, run_name: str) -> None:
    published = Published(bootstrap, store, run_name, anchor_share=0)
    assert kinds([published.next() for _ in range(3)]) == [ANCHOR] * 3


def test_a_tensor_of_another_shape_takes_an_anchor_and_deltas_go_on_from_there(
    bootstrap: str, store: ObjectStore, run_name: str
) -> None:
    published = Published(bootstrap, store, run_name)
    events = [published.next(), published.next(), published.next(values=10_000), published.next(values=10_000)]
    assert kinds(events) == [ANCHOR, DELTA, ANCHOR, DELTA]
    assert events[3].base_hash == events[2].weights_hash
