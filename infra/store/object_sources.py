"""Where objects come from: what a reader of objects asks of a run, an archive or the cache of a machine."""

from __future__ import annotations

from typing import Protocol

from headrace.schemas.records import ClaimCheck


class ObjectSource(Protocol):
    """Where the objects are that records name: a run, which has a store, or an archive."""

    def get(self, claim: ClaimCheck) -> bytes:
        """Return an object's bytes, verified. Raises ObjectMissing, ObjectCorrupt, and what else ends the reading."""
        ...

    def get_group(self, claim: ClaimCheck) -> bytes:
        """`get` for an encoded group. Raises ObjectCorrupt for one that is too large to be held."""
        ...


class WeightObjects(Protocol):
    """Objects of weights, which a cache may hold: large, and hashed by their reader."""

    def get(self, claim: ClaimCheck) -> memoryview:
        """Return an object's bytes. Raises as `ObjectStore.get`."""
        ...

    def drop(self, claim: ClaimCheck) -> None:
        """Forget an object: its bytes were not what they should be."""
        ...
