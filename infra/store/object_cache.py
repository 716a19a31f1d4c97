"""Objects of weights on this machine: what its workers need is fetched once, and kept while there is room."""

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
"""A fetch that gets no byte for so long is not waited for any more: its process or its store has stopped."""
MOST_FILES = 16_384
"""Beyond this number, too, the oldest files go: a small model's deltas take no room, but time to be looked through."""
ROOM_SLACK = 16
"""A process looks for room again when it has brought in this fraction of what there may be: looking takes a while."""
LONGEST_FETCH_S = 86_400.0
"""What was begun before that, and is not whole, its process left behind when it was killed."""
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Uncached:
    """Objects from the store each time, for a machine that keeps none."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def get(self, claim: ClaimCheck) -> memoryview:
        """Return an object. Raises as `ObjectStore.get`."""
        return memoryview(self._store.get(claim.key, claim.sha256, claim.size_bytes))

    def drop(self, claim: ClaimCheck) -> None:
        """Forget nothing."""


class ObjectCache:
    """A folder of objects, each under its sha256, shared by processes; in 256 folders, by how their names begin.

    A file appears whole and verified; what is in it later is not hashed again here, since whoever uses weights hashes
    them anyway, and calls `drop` where they are not what they should be.

    Args:
        store: Where objects come from.
        folder: Made when it is missing.
        most_bytes: Beyond these, and a ROOM_SLACK-th for each process, what was not used for longest goes; an
            object that is larger than that stays alone.
    """

    def __init__(self, store: ObjectStore, folder: Path, most_bytes: int) -> None:
        self._store, self._folder, self._most_bytes = store, folder, most_bytes
        self._has_warned = False
        self._brought: tuple[int, int] | None = None
        """Bytes and files that were fetched since room was looked for; None at first."""

    def get(self, claim: ClaimCheck) -> memoryview:
        """Return an object, mapped from its file; it stays readable when the file goes. Raises as `ObjectStore.get`.

        A caller waits for an object that another process is fetching, as long as that makes progress. Where the
        folder cannot be used (a full disk, a file system that is read only, a process that was stopped with its lock)
        the object comes from the store, which is logged once.
        """
        path = self._path(claim)
        try:
            found = self._map_or_make_room(claim, path)
            if self._can_be_full():
                self._make_room(keep=claim.sha256)
        except OSError as error:
            if not self._has_warned:
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
        with self._hold_lock(path.parent):
            for _ in range(TRIES):
                # Others make room meanwhile, without this lock: what is open stays.
                with suppress(FileNotFoundError), path.open("rb") as file:
                    if os.fstat(file.fileno()).st_size == claim.size_bytes:
                        os.utime(file.fileno())
                        size = claim.size_bytes
                        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b"")
                self._store.get_to_file(claim.key, claim.sha256, claim.size_bytes, path)
                if self._brought is not None:
                    self._brought = (self._brought[0] + claim.size_bytes, self._brought[1] + 1)
        raise FileNotFoundError(f"{path} was deleted {TRIES} times right after it was fetched")

    def drop(self, claim: ClaimCheck) -> None:
        """Forget an object whose file was altered."""
        with suppress(OSError, ObjectCorrupt):
            self._path(claim).unlink()

    def _path(self, claim: ClaimCheck) -> Path:
        """Return an object's file. What a record holds becomes no path before it was looked at."""
        if not _SHA256.fullmatch(claim.sha256):
            raise ObjectCorrupt(f"the claim check of {claim.key[:80]!r} must name a sha256; got {claim.sha256[:80]!r}")
        return self._folder / claim.sha256[:2] / claim.sha256

    def _can_be_full(self) -> bool:
        if self._brought is None:
            return True
        size, files = self._brought
        return size * ROOM_SLACK > self._most_bytes or files * ROOM_SLACK > MOST_FILES

    def _make_room(self, keep: str, free_bytes: int = 0) -> None:
        """Remove what was not used for longest. Two who do so at once remove more than need be, and nothing wrong.

        Args:
            keep: The sha256 of what is not removed.
            free_bytes: So many are to be free on the disk that were not.
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
    def _hold_lock(self, part: Path) -> Iterator[None]:
        """Hold the lock of a folder of objects, which its process loses when it dies.

        Raises TimeoutError when whoever has it fetches nothing.
        """
        with (part / ".lock").open("ab") as file:
            self._lock(file, part)
            yield

    def _lock(self, file: BinaryIO, part: Path) -> None:
        before, since = self._measure_fetched(part), time.monotonic()
        while not take_lock(file.fileno()):
            if (now := self._measure_fetched(part)) != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > FETCH_STUCK_S:
                raise TimeoutError(
                    f"another process holds the lock of {part} and has fetched nothing for {FETCH_STUCK_S:.0f} s; this "
                    "one fetches from the store instead"
                )
            time.sleep(LOCK_POLL_S)

    def _measure_fetched(self, part: Path) -> dict[str, int]:
        """Return the sizes of what is being fetched."""
        sizes = {}
        for path in part.glob("*.part"):
            with suppress(FileNotFoundError):
                sizes[path.name] = path.stat().st_size
        return sizes
