"""A cache of weight objects that all workers of a machine share."""

from __future__ import annotations

import errno
import mmap
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import structlog

from headrace.infra.file_locks import take_lock
from headrace.infra.store.object_store import ObjectCorrupt, ObjectStore
from headrace.schemas.records import ClaimCheck

log = structlog.get_logger()

TRIES = 3
LOCK_POLL_S = 0.02
FETCH_STUCK_S = 15.0
"""Seconds without a byte after which another process's fetch counts as stuck."""
MOST_FILES = 16_384
"""Most files: a small model's deltas take little room, but time to list. Beyond it the oldest are removed."""
ROOM_SLACK = 16
"""A process checks the room again after fetching this fraction of the limit, because a check takes time."""
LONGEST_FETCH_S = 86_400.0
"""Seconds after which an incomplete file counts as left by a killed process."""
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Uncached:
    """Fetches objects from the store each time, for a machine without a cache."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def get(self, claim: ClaimCheck) -> memoryview:
        """Return an object. Raises as `ObjectStore.get`."""
        return memoryview(self._store.get(claim.key, claim.sha256, claim.size_bytes))

    def drop(self, claim: ClaimCheck) -> None:
        """Do nothing."""


class ObjectCache:
    """A folder of objects by sha256, shared by processes; in 256 subfolders by the first two digits.

    A file appears atomically after verification. It is not hashed again here, because users of weights hash them
    anyway, and call `drop` for wrong ones.

    Args:
        store: Source of the objects.
        folder: The cache folder; created if missing.
        most_bytes: Limit, exceeded by at most a ROOM_SLACK-th per process; the least recently used are removed. A
            larger object stays alone.
    """

    def __init__(self, store: ObjectStore, folder: Path, most_bytes: int) -> None:
        self._store, self._folder, self._most_bytes = store, folder, most_bytes
        self._has_warned = False
        self._brought: tuple[int, int] | None = None
        """Bytes and files fetched since the last check of room; None at first."""

    def get(self, claim: ClaimCheck) -> memoryview:
        """Return an object mapped from its file, readable even after the file's removal. Raises as `ObjectStore.get`.

        It waits while another process fetches the object with progress. If the folder is unusable (full disk, read-only
        file system, stopped process with the lock), the object comes from the store, and this is logged once.
        """
        path = self._path(claim)
        try:
            found = self._map_or_make_room(claim, path)
            if self._can_be_full():
                self._make_room(keep=claim.sha256)
        except OSError as error:
            if not self._has_warned:
                # The machine's cache of weights cannot be used; each load fetches from the store.
                log.warning("weights_cache.unusable", folder=str(self._folder), why=str(error))
                self._has_warned = True
            return memoryview(self._store.get(claim.key, claim.sha256, claim.size_bytes))
        return found

    def _map_or_make_room(self, claim: ClaimCheck, path: Path) -> memoryview:
        try:
            return self._map_file(claim, path)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
        self._make_room(claim.sha256, claim.size_bytes)
        return self._map_file(claim, path)

    def _map_file(self, claim: ClaimCheck, path: Path) -> memoryview:
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._hold_subfolder_lock(path.parent):
            for _ in range(TRIES):
                # Other processes remove files without this lock, but an open file stays readable.
                with suppress(FileNotFoundError), path.open("rb") as file:
                    if os.fstat(file.fileno()).st_size == claim.size_bytes:
                        os.utime(file.fileno())
                        size = claim.size_bytes
                        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b"")
                self._store.get_to_file(claim.key, claim.sha256, claim.size_bytes, path)
                if self._brought is not None:
                    self._brought = (self._brought[0] + claim.size_bytes, self._brought[1] + 1)
        raise FileNotFoundError(
            f"{path} was deleted {TRIES} times right after it was fetched; this process fetches from the store instead"
        )

    def drop(self, claim: ClaimCheck) -> None:
        """Remove an object whose file is damaged."""
        with suppress(OSError, ObjectCorrupt):
            self._path(claim).unlink()

    def _path(self, claim: ClaimCheck) -> Path:
        """Return an object's path, after checking the record's hash."""
        if not _SHA256.fullmatch(claim.sha256):
            raise ObjectCorrupt(f"the claim check of {claim.key[:80]!r} must name a sha256; got {claim.sha256[:80]!r}")
        return self._folder / claim.sha256[:2] / claim.sha256

    def _can_be_full(self) -> bool:
        if self._brought is None:
            return True
        size, files = self._brought
        return size * ROOM_SLACK > self._most_bytes or files * ROOM_SLACK > MOST_FILES

    def _make_room(self, keep: str, free_bytes: int = 0) -> None:
        """Remove the least recently used files. Two concurrent processes may remove too many, which does no harm.

        Args:
            keep: The sha256 of an object to keep.
            free_bytes: Bytes that must become free on the disk.
        """
        self._brought = (0, 0)
        for path in self._folder.glob("??/*.part"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > LONGEST_FETCH_S:
                    path.unlink()
        files = []
        for path in self._folder.glob("??/" + "?" * 64):
            with suppress(FileNotFoundError):
                found = path.stat()
                files.append((found.st_mtime_ns, found.st_size, path))
        total, count = sum(size for _, size, _ in files), len(files)
        most_bytes = min(self._most_bytes, total - free_bytes) if free_bytes else self._most_bytes
        for _, size, path in sorted(files):
            if total <= most_bytes and count <= MOST_FILES:
                return
            if path.name != keep:
                path.unlink(missing_ok=True)
                total, count = total - size, count - 1

    @contextmanager
    def _hold_subfolder_lock(self, subfolder: Path) -> Iterator[None]:
        """Hold the lock of a subfolder, which a process loses when it dies.

        Raises TimeoutError if its holder makes no progress.
        """
        with (subfolder / ".lock").open("ab") as file:
            self._lock(file, subfolder)
            yield

    def _lock(self, file: BinaryIO, subfolder: Path) -> None:
        before, since = self._measure_fetched(subfolder), time.monotonic()
        while not take_lock(file.fileno()):
            if (now := self._measure_fetched(subfolder)) != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > FETCH_STUCK_S:
                raise TimeoutError(
                    f"another process holds the lock of {subfolder} and has fetched nothing for {FETCH_STUCK_S:.0f} s; "
                    "this process fetches from the store instead"
                )
            time.sleep(LOCK_POLL_S)

    def _measure_fetched(self, subfolder: Path) -> dict[str, int]:
        """Return the sizes of running fetches."""
        sizes = {}
        for path in subfolder.glob("*.part"):
            with suppress(FileNotFoundError):
                sizes[path.name] = path.stat().st_size
        return sizes
