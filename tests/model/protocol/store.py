"""The object store: bytes by name, which are there or not."""

from __future__ import annotations

from headrace.infra.store.object_names import Content, StoredObject, pieces_of
from headrace.infra.store.object_store import ObjectCorrupt, ObjectMissing, ObjectStore, StoreUnavailable
from protocol.broker import STAGE, Blocked


class Address:
    """Stands in for `StoreAddress`."""

    prefix = ""


class Store(ObjectStore):
    """A frozen one answers no question, which whoever asks hears in the end; who puts something waits."""

    def __init__(self) -> None:
        self.address = Address()  # type: ignore[assignment]  # all that is asked of it

    def put_named(self, stored: StoredObject, data: Content, *, anew: bool = False) -> None:
        if STAGE.broker.is_store_frozen:
            raise Blocked
        if anew or stored.key not in self._objects:
            self._objects[stored.key] = b"".join(pieces_of(data))

    def get(self, key: str, sha256: str, size_bytes: int) -> bytes:
        if key not in self._objects:
            raise ObjectMissing(f"{key} does not exist in the store")
        found = self._objects[key]
        if len(found) != size_bytes:
            raise ObjectCorrupt(f"{key} is torn")
        return found

    def verify(self, key: str, sha256: str, size_bytes: int) -> None:
        self.get(key, sha256, size_bytes)

    def has_object(self, key: str) -> bool:
        return key in self._objects

    @property
    def _objects(self) -> dict[str, bytes]:
        if STAGE.broker.is_store_frozen:
            raise StoreUnavailable("the store does not answer")
        return STAGE.broker.objects
