"""What an event of weights promises: that its objects are there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.infra.run.run import Run
from headrace.infra.store.object_store import StoreUnavailable
from headrace.infra.weights.paths import ANCHOR, DELTA
from headrace.infra.weights.tensors import Tensor
from headrace.schemas.records import ClaimCheck
from headrace.trainers.versions.publisher import VersionUploader


class Store:
    """What a run puts away; it gives up while it is away."""

    def __init__(self) -> None:
        self.stored: list[ClaimCheck] = []
        self.is_away = False

    def put(self, data: Any, kind: str, *_: Any, **__: Any) -> ClaimCheck:
        if self.is_away:
            raise StoreUnavailable("away")
        size = len(data) if isinstance(data, bytes) else sum(len(piece) for piece in data)
        claim = ClaimCheck("main", f"{kind}/{len(self.stored)}", "a" * 64, size)
        self.stored.append(claim)
        return claim


def weights(version: int) -> dict[str, Tensor]:
    return {"w": Tensor("BF16", (64,), memoryview(bytes([version] + [7] * 127)))}


def test_weights_are_announced_once_they_are_stored_and_not_where_the_store_was_given_up() -> None:
    store = Store()
    settings = SimpleNamespace(device="cpu", steps=9, anchor_every=50, anchor_share=9.0)
    run = SimpleNamespace(run_id="one", put=store.put, recipe=SimpleNamespace(trainer_of=lambda _: settings))
    uploader = VersionUploader(cast("Run", run), "solver", ())

    for version, kind in ((0, ANCHOR), (1, DELTA)):
        base, store.is_away = uploader.base, True
        with pytest.raises(StoreUnavailable):
            uploader.upload_version(weights(version), version)
        assert uploader.base is base, "the next delta is still one on what was announced"
        store.is_away = False
        event = uploader.upload_version(weights(version), version)
        assert (event.kind, event.weights) == (kind, store.stored[-1])
