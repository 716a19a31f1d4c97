"""Whether the objects that records name are in the store, and hold what the records say."""

from __future__ import annotations

import mmap
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from consumers.audit.fold import spot
from infra.kafka import Message
from infra.object_store import ObjectStore, StoreDenied, StoreError, StoreUnavailable
from infra.weights import WeightsError, read_safetensors, weights_hash
from schemas import codec
from schemas.avro import SchemaError
from schemas.records import CheckpointPointer, ClaimCheck, WeightsPublished

LAST_SEEN = 64
"""Objects that are named again and again, as the files beside every anchor are, are read once."""


class StoreAway(Exception):
    """The store cannot be asked; nothing more of it can be checked."""


class Objects:
    """Checks objects one by one, in a file on disk: an anchor may be larger than memory."""

    def __init__(self, store: ObjectStore, *, deep: bool) -> None:
        self._store = store
        self._deep = deep
        self._seen: dict[ClaimCheck, None] = {}
        self.count = 0
        self.seconds = 0.0

    def check(self, message: Message, kind: type[WeightsPublished | CheckpointPointer]) -> Iterator[str]:
        """Yield what is wrong with the objects of an event or a pointer. Raises StoreAway."""
        begin = time.perf_counter()
        try:
            record = codec.decode(message.value, kind)
        except SchemaError:  # the fold says so
            return
        if isinstance(record, WeightsPublished):
            yield from self._weights(record, spot(message))
        elif isinstance(record, CheckpointPointer):
            yield from self._checkpoint(record, spot(message))
        self.seconds += time.perf_counter() - begin

    def _weights(self, event: WeightsPublished, place: str) -> Iterator[str]:
        name = f"version {event.version} of {event.policy}, announced by {place}:"
        for file in event.files:
            yield from (f"{name} file {file.name}: {why}" for why in self.claim(file.claim))
        if event.weights is None:
            yield f"{name} the record names no object"
            return
        try:
            with tempfile.TemporaryDirectory(prefix="headrace-audit-") as folder:
                found = self._hash_of(event.weights, Path(folder) / "weights")
        except (StoreUnavailable, StoreDenied) as error:
            raise StoreAway(str(error)) from error
        except (StoreError, WeightsError) as error:
            yield f"{name} {error}"
            return
        if found != event.weights_hash:
            yield (
                f"{name} its object {event.weights.key} has weights_hash {found} where the record says "
                f"{event.weights_hash}"
            )

    def _hash_of(self, claim: ClaimCheck, path: Path) -> str:
        """Return the `weights_hash` of an object, whose sha256 is checked on the way."""
        self.count += 1
        self._store.get_to_file(claim.key, claim.sha256, claim.size_bytes, path)
        with path.open("rb") as file:
            if not claim.size_bytes:
                return weights_hash(read_safetensors(b""))
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view, memoryview(view) as data:
                tensors = read_safetensors(data)
                found = weights_hash(tensors)
                for tensor in tensors.values():
                    tensor.data.release()
                del tensors
                return found

    def _checkpoint(self, pointer: CheckpointPointer, place: str) -> Iterator[str]:
        name = f"the checkpoint of version {pointer.version} of {pointer.policy}, named by {place}:"
        if self._deep or pointer.checkpoint is None:
            yield from (f"{name} {why}" for why in self.claim(pointer.checkpoint))
            return
        self.count += 1
        try:
            if not self._store.exists(pointer.checkpoint.key):
                yield f"{name} {pointer.checkpoint.key} does not exist in the store"
        except (StoreUnavailable, StoreDenied) as error:
            raise StoreAway(str(error)) from error
        except StoreError as error:
            yield f"{name} {error}"

    def claim(self, claim: ClaimCheck | None) -> Iterator[str]:
        """Yield what is wrong with the bytes behind a claim check. Raises StoreAway."""
        if claim is None:
            yield "the record names no object"
            return
        if claim in self._seen:
            return
        self.count += 1
        try:
            with tempfile.TemporaryDirectory(prefix="headrace-audit-") as folder:
                self._store.get_to_file(claim.key, claim.sha256, claim.size_bytes, Path(folder) / "object")
        except (StoreUnavailable, StoreDenied) as error:
            raise StoreAway(str(error)) from error
        except StoreError as error:
            yield str(error)
            return
        self._seen[claim] = None
        if len(self._seen) > LAST_SEEN:
            del self._seen[next(iter(self._seen))]
