"""Immutable objects, named by the hash of their content, in any store with the S3 interface.

Nothing is ever overwritten with other bytes and every reader checks what it reads, so a store that tears overwrites and
has no conditional put is good enough. An unreachable store is reported at once (StoreUnavailable, within 5 s on the
default timeout, or three times as long if it is silent again); waiting and trying again is the caller's.

The errors are in `store_errors.py`, requests and their second attempts in `bucket.py`.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeVar

from headrace.infra.store.bucket import STORE_TIMEOUT_S, UPLOAD_PART_BYTES, Bucket
from headrace.infra.store.object_names import (
    PROBE_FOLDER,
    Content,
    JoinedPieces,
    Kind,
    ListedObject,
    StoredObject,
    is_key,
    pieces_of,
)
from headrace.infra.store.store_address import StoreAddress
from headrace.infra.store.store_errors import (
    ObjectCorrupt,
    ObjectMissing,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from headrace.infra.store.unread_objects import LOST_AFTER_S, UnreadObjects

if TYPE_CHECKING:
    from minio.datatypes import Object as StoredAs

__all__ = [
    "PROBE_FOLDER",
    "SPARED_BY_GC",
    "TAKEN_AS_STORED",
    "UPLOAD_PART_BYTES",
    "Content",
    "Kind",
    "ListedObject",
    "ObjectCorrupt",
    "ObjectMissing",
    "ObjectStore",
    "StoreAddress",
    "StoreDenied",
    "StoreError",
    "StoreUnavailable",
    "StoredObject",
    "is_key",
]

DOWNLOAD_CHUNK_BYTES = 1024 * 1024
SPARED_BY_GC = timedelta(days=1)
"""Garbage collection keeps objects younger than this, because their records may not be written yet."""
TAKEN_AS_STORED = SPARED_BY_GC / 2
"""`put` sends an object that is older than this again, which makes it young. So garbage collection keeps what `put`
has returned for twelve hours at least, however long the object had been there. Its record must be written by then."""
T = TypeVar("T")


class ObjectStore:
    """Put and get immutable objects of one bucket. Safe to use from several threads; the constructor sends no request.

    Raises UsageError for an endpoint that is not valid, and where there are no keys.
    """

    def __init__(
        self,
        address: StoreAddress,
        *,
        timeout_s: float = STORE_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self._bucket = Bucket(address, timeout_s)
        self._unread = UnreadObjects(self._bucket, clock)

    def close(self) -> None:
        """Close idle connections; the store may be used again."""
        self._bucket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def key(self, kind: str, sha256: str, suffix: str = "") -> str:
        """Name the object with that content: `<prefix><kind>/<sha256><suffix>`."""
        return f"{self.address.prefix}{kind}/{sha256}{suffix}"

    def put(self, data: Content, kind: Kind, suffix: str = "") -> StoredObject:
        """Store bytes under the name of their content; if they are there and young, they are not sent again."""
        stored = self.compute_stored_object(data, kind, suffix)
        self.put_named(stored, data)
        return stored

    def compute_stored_object(self, data: Content, kind: Kind, suffix: str = "") -> StoredObject:
        """Return how bytes will be named once they are stored; the store is not asked."""
        hashed, size = hashlib.sha256(), 0
        for piece in pieces_of(data):
            hashed.update(piece)
            size += piece.nbytes
        digest = hashed.hexdigest()
        return StoredObject(self.key(kind, digest, suffix), digest, size)

    def put_named(self, stored: StoredObject, data: Content, *, anew: bool = False) -> None:
        """`put` bytes that were named before, for another attempt: they are not hashed a second time.

        With `anew` they are sent in any case, because the stored bytes may be damaged.
        """
        if anew or not self._is_young(stored):
            self._bucket.upload(stored.key, stored.size_bytes, lambda: io.BufferedReader(JoinedPieces(pieces_of(data))))

    def put_file(self, stored: StoredObject, path: Path, *, anew: bool = False) -> None:
        """`put_named` the bytes of a file, which is not read into memory at once. Raises OSError too."""
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if stored.size_bytes else b""
            self.put_named(stored, data, anew=anew)

    def get(self, key: str, sha256: str, size_bytes: int) -> bytes:
        """Return the object's bytes, verified. Raises ObjectMissing, ObjectCorrupt, StoreUnavailable or StoreDenied.

        A key that is not valid counts as missing, because keys come from records that anybody may have written.
        """
        self._check(key)

        def read() -> bytes:
            buffer = io.BytesIO()
            self._stream(key, sha256, size_bytes, buffer)
            return buffer.getvalue()

        return self._retry_if_torn(read)

    def verify(self, key: str, sha256: str, size_bytes: int) -> None:
        """Read an object and check its hash, without keeping its bytes. Raises as `get`."""
        self._check(key)
        self._retry_if_torn(lambda: self._stream(key, sha256, size_bytes, _Counted()))

    def get_to_file(self, key: str, sha256: str, size_bytes: int, path: Path) -> None:
        """Write the object into a file at `path`, which appears complete and verified or not at all.

        Raises as `get`, and OSError when the file cannot be written.
        """
        self._check(key)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.part")

        def read() -> None:
            with temporary.open("wb") as file:
                self._stream(key, sha256, size_bytes, file)

        try:
            self._retry_if_torn(read)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def has_object(self, key: str) -> bool:
        """Return whether there is such an object."""
        return self._bucket.stat(key) is not None

    def list_objects(self, below: str = "") -> list[ListedObject]:
        """Return all objects under the address's prefix, or in a folder below it; unfinished uploads are left out."""
        return self._bucket.list_objects(f"{self.address.prefix}{below}")

    def age(self, key: str) -> timedelta | None:
        """Return how long ago an object was last written, by the store's own clock; None when there is none."""
        found = self._bucket.stat(key)
        return _read_answer_time(found) - found.last_modified if found and found.last_modified else None

    def now(self, key: str) -> datetime | None:
        """Return the time of the store's own clock, from its answer about an object; None without such an object."""
        found = self._bucket.stat(key)
        return _read_answer_time(found) if found else None

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""
        self._bucket.delete(key)

    @property
    def access_key(self) -> str:
        """Id of the access key in use, which is not a secret."""
        return self._bucket.access_key

    def has_bucket(self) -> bool:
        """Return whether the bucket is there. Raises StoreDenied and StoreUnavailable."""
        return self._bucket.has_bucket()

    def ensure_bucket(self) -> None:
        """Make the bucket unless it exists, and check that these keys may write and read it.

        Raises StoreDenied when they may not.
        """
        bucket = self.address.bucket
        content = b"headrace may write and read here\n"
        digest = hashlib.sha256(content).hexdigest()
        probe = self.key(PROBE_FOLDER, digest)
        try:
            self._bucket.make()
            self._bucket.upload(probe, len(content), lambda: io.BytesIO(content))
            self.get(probe, digest, len(content))
        except StoreDenied as error:
            raise StoreDenied(
                f"the access key {self._bucket.access_key!r} may not use bucket {bucket!r} at {self.address.endpoint} "
                f"({error.code}): {error.advice}, or name another bucket"
            ) from error

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the store answers. Raises StoreUnavailable when it does not within `timeout_s`."""
        self._bucket.wait_ready(timeout_s)

    def _check(self, key: str) -> None:
        if not is_key(key):
            raise ObjectMissing(
                f"{self.address.endpoint}/{self.address.bucket}: {key[:200]!r} is not a valid object key"
            )

    def _is_young(self, stored: StoredObject) -> bool:
        found = self._bucket.stat(stored.key)
        return (
            found is not None
            and found.size == stored.size_bytes
            and found.last_modified is not None
            and _read_answer_time(found) - found.last_modified < TAKEN_AS_STORED
        )

    def _read(self, request: Callable[[], T], key: str) -> T:
        """Read from an object. Raises ObjectMissing for one that could not be read for a while, though others could."""
        try:
            found = self._bucket.ask(request, key)
        except StoreUnavailable as error:
            if self._unread.note_failure(key):
                raise ObjectMissing(
                    f"{error}. It counts as lost: for {LOST_AFTER_S:g} s it could not be read, but other objects could"
                ) from error
            raise
        self._unread.note_read(key)
        return found

    def _stream(self, key: str, sha256: str, size_bytes: int, into: BinaryIO) -> None:
        def read() -> str:
            digest = hashlib.sha256()
            into.seek(0)
            into.truncate()
            with self._bucket.open_object(key, 0, 0) as response:
                for chunk in response.stream(DOWNLOAD_CHUNK_BYTES):
                    digest.update(chunk)
                    into.write(chunk)
                    if into.tell() > size_bytes:
                        break
            return digest.hexdigest()

        found = self._read(read, key)
        if (size := into.tell()) != size_bytes:
            more = " or more" if size > size_bytes else ""
            raise ObjectCorrupt(
                f"{self._bucket.name_object(key)} has {size}{more} bytes, but the record that names it says "
                f"{size_bytes}"
            )
        if found != sha256:
            raise ObjectCorrupt(
                f"{self._bucket.name_object(key)} has sha256 {found}, but the record that names it says {sha256}"
            )

    def _retry_if_torn(self, read: Callable[[], T]) -> T:
        """Read a second time: rclone gives partial objects while they are written again, even with the same bytes."""
        try:
            return read()
        except ObjectCorrupt:
            return read()


def _read_answer_time(found: StoredAs) -> datetime:
    """Return when the store answered, by the clock that dates its objects; by our clock where it does not say.

    An answer's date has whole seconds. One second is added; otherwise a new object could be younger than the answer.
    """
    date = (found.metadata or {}).get("date")
    return parsedate_to_datetime(date) + timedelta(seconds=1) if date else datetime.now(UTC)


class _Counted(io.BytesIO):
    """Counts what is written into it."""

    def __init__(self) -> None:
        super().__init__()
        self._size = 0

    def write(self, data: Any, /) -> int:
        self._size += len(data)
        return len(data)

    def tell(self) -> int:
        return self._size

    def truncate(self, _size: int | None = None, /) -> int:
        self._size = 0
        return 0
