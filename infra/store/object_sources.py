"""Where objects come from: what a reader of objects needs of a run, an archive or the cache of a machine."""

from __future__ import annotations

from typing import Protocol

from headrace.schemas.records import ClaimCheck


class ObjectSource(Protocol):
    """Where the objects are that records name: a run, which has a store, or an archive."""

    def get(self, claim: ClaimCheck) -> bytes:
        """Return an object's bytes, verified. Raises ObjectMissing, ObjectCorrupt, or what ends the reading."""
        ...

    def get_group(self, claim: ClaimCheck) -> bytes:
        """Return an encoded group, as `get` does. Raises ObjectCorrupt for one that is too large for the memory."""
        ...


class WeightObjects(Protocol):
    """Objects of weights, which are large, may come from a cache, and are hashed by their reader."""

    def get(self, claim: ClaimCheck) -> memoryview:
        """Return an object's bytes. Raises as `ObjectStore.get`."""
        ...

    def drop(self, claim: ClaimCheck) -> None:
        """Remove an object from the cache, because its bytes were wrong."""
        ...
