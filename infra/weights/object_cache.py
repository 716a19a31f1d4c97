"""Objects of weights on this machine: what its workers need is fetched once, and kept while there is room."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from infra.object_store import ObjectCorrupt, ObjectStore
from schemas.records import ClaimCheck

_SHA256 = re.compile(r"[0-9a-f]{64}")


class Uncached:
    """Objects from the store each time, for who keeps none."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def get(self, claim: ClaimCheck) -> memoryview:
        """Return an object. Raises as `ObjectStore.get`."""
        return memoryview(self._store.get(claim.key, claim.sha256, claim.size_bytes))

    def drop(self, claim: ClaimCheck) -> None:
        """Forget nothing."""


class ObjectCache:
    """A folder of objects, each under its sha256, shared by processes.

    A file appears whole and verified; what is in it later is not hashed again here, since whoever uses weights hashes
    them anyway, and says `drop` where they are not what they should be.

    Args:
        store: Where objects come from.
        folder: Made when it is missing.
        most_bytes: Beyond these, what was not used for longest goes; an object that is larger than that stays alone.
    """

    def __init__(self, store: ObjectStore, folder: Path, most_bytes: int) -> None:
        self._store, self._folder, self._most_bytes = store, folder, most_bytes

    def get(self, claim: ClaimCheck) -> memoryview:
        """Return an object, mapped from its file; it stays readable when the file goes. Raises as `ObjectStore.get`.

        Whoever asks for an object that another process is fetching waits for it.
        """
        path = self._path(claim)
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._locked(claim.sha256[:2]):
            if not path.exists() or path.stat().st_size != claim.size_bytes:
                self._store.get_to_file(claim.key, claim.sha256, claim.size_bytes, path)
            os.utime(path)
            with path.open("rb") as file:
                found = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if claim.size_bytes else b"")
        self._make_room(keep=claim.sha256)
        return found

    def drop(self, claim: ClaimCheck) -> None:
        """Forget an object whose file was altered."""
        if _SHA256.fullmatch(claim.sha256):
            self._path(claim).unlink(missing_ok=True)

    def _path(self, claim: ClaimCheck) -> Path:
        """Return an object's file. What a record says becomes no path before it was looked at."""
        if not _SHA256.fullmatch(claim.sha256):
            raise ObjectCorrupt(f"the claim on {claim.key[:80]!r} names no sha256: {claim.sha256[:80]!r}")
        return self._folder / claim.sha256

    def _make_room(self, keep: str) -> None:
        """Remove what was not used for longest. Two who do so at once remove more than need be, and nothing wrong."""
        files = []
        for path in self._folder.glob("?" * 64):
            with suppress(FileNotFoundError):
                found = path.stat()
                files.append((found.st_mtime_ns, found.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._most_bytes:
                return
            if path.name != keep:
                path.unlink(missing_ok=True)
                total -= size

    @contextmanager
    def _locked(self, part: str) -> Iterator[None]:
        """Hold the lock of a part of the objects, which its process loses when it dies."""
        with (self._folder / f"{part}.lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
