"""Immutable objects, named by the hash of their content, in anything that speaks S3.

Nothing is ever overwritten with other bytes and every reader checks what it reads, so a store that tears overwrites and
knows no conditional put is good enough. A store that is away is told at once (StoreUnavailable, within 5 s on the
default timeout); waiting and trying again is the caller's.

StoreError
├── ObjectMissing        no such object (or bucket)
├── ObjectCorrupt        the object's bytes are not the ones that its name and record promise
├── StoreDenied          the keys are wrong or lack a right
└── StoreUnavailable     (also an Unavailable) the store does not answer now
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, Self, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit

from headrace.infra.errors import HeadraceError, Unavailable, UsageError

if TYPE_CHECKING:  # the client takes a third of a second to import: many commands look at topics alone
    import urllib3
    from _typeshed import WriteableBuffer
    from minio import Minio

    from headrace.infra.store.access import StoreKeys

Kind = Literal["weights", "files", "checkpoints", "groups", "examples"]
"""Folder of an object; who may read and write which stands in `store_policy.py`."""

PROBE = "probe"
"""Folder of the one object that tells whether a bucket can be used."""

TIMEOUT_S = 4.0
PART_BYTES = 8 * 1024 * 1024
"""Larger objects go up in parts of this size."""
MOST_PARTS = 10_000
"""S3's limit; the parts of an object beyond 80 GB are larger."""
JOIN_S, SLOWEST_JOIN_BYTES_PER_S = 30.0, 20_000_000
"""How long a store may take for a part, or to join them all; nothing is won by sending all again too soon."""
CHUNK_BYTES = 1024 * 1024
SPARED_BY_GC = timedelta(days=1)
"""Garbage collection spares objects younger than this: their records may be on their way."""
TAKEN_AS_STORED = SPARED_BY_GC / 2
"""`put` sends an object that is older than this anew, which makes it young. So what it has returned is spared for
twelve hours at least, in which its record is to be written, however long the object had been there."""

_SEGMENT = re.compile(r"(?!\.\.?$)[A-Za-z0-9._=+-]+")
"""Part of a key between slashes; never `.` or `..`."""

Content = bytes | memoryview | Sequence[bytes | memoryview]
"""Of an object: bytes, or several pieces that follow each other, so that nobody need copy them together."""
T = TypeVar("T")

_MISSING = frozenset({"NoSuchKey", "NoSuchObject", "NoSuchBucket", "NoSuchVersion"})
_DENIED = frozenset({
    "AccessDenied", "AllAccessDisabled", "AccountProblem", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken",
    "SignatureDoesNotMatch",
})  # fmt: skip
_BUSY, _LOST = "see its log; is its disk full?", "what was sent of it is lost, and is sent again"
_AWAY = {
    **dict.fromkeys(("InternalError", "RequestTimeout", "ServiceUnavailable", "XMinioServerNotInitialized"), _BUSY),
    **dict.fromkeys(("SlowDown", "SlowDownRead", "SlowDownWrite"), _BUSY),
    **dict.fromkeys(("NoSuchUpload", "InvalidPart"), _LOST),
}
"""What waiting or sending again heals. Parts are lost in a restart, and known no more when a join was answered late."""


class StoreError(HeadraceError):
    """The object store refused, or holds something else than it should."""


class ObjectMissing(StoreError):
    """There is no such object."""


class ObjectCorrupt(StoreError):
    """The bytes read are not those promised; they were not handed out."""


class StoreDenied(StoreError):
    """The keys are wrong, or lack a right on the bucket."""


class StoreUnavailable(StoreError, Unavailable):
    """The store does not answer now."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a run's objects live. `endpoint` is `host:port`; `prefix` goes before every key as it is ("runs/a/").

    Without keys of its own it is reached with those of the environment (`store_access.py`).
    """

    endpoint: str
    bucket: str
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    secure: bool = False
    region: str = "us-east-1"
    prefix: str = ""

    def to_url(self) -> str:
        """`http[s]://endpoint/bucket/prefix?region=…`, without the keys."""
        return (
            f"{'https' if self.secure else 'http'}://{self.endpoint}/{self.bucket}/{self.prefix}"
            f"?{urlencode({'region': self.region})}"
        )

    @classmethod
    def from_url(cls, url: str, *, access_key: str = "", secret_key: str = "") -> Self:
        """Read `to_url`'s form. Raises UsageError."""
        parts = urlsplit(url)
        bucket, _, prefix = parts.path.lstrip("/").partition("/")
        if parts.scheme not in {"http", "https"} or not parts.hostname or not bucket or "@" in parts.netloc:
            from headrace.infra.store.access import KEY_PLACES

            shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
            raise UsageError(
                f"{shown!r} is no address of an object store: write http[s]://host:port/bucket/prefix, and the keys "
                f"into {KEY_PLACES}"
            )
        region = parse_qs(parts.query).get("region", ["us-east-1"])[0]
        return cls(parts.netloc, bucket, access_key, secret_key, parts.scheme == "https", region, prefix)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object that is in the store: all that a record needs to name it."""

    key: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object as a listing shows it."""

    key: str
    size_bytes: int
    modified: datetime
    """When it was last written, in UTC by the store's clock."""


class ObjectStore:
    """Put and get immutable objects of one bucket. Safe to use from several threads; constructing asks nothing.

    Raises UsageError for an endpoint that is none, and where there are no keys.
    """

    def __init__(self, address: StoreAddress, *, timeout_s: float = TIMEOUT_S) -> None:
        self.address = address
        self._timeout_s = timeout_s
        from headrace.infra.store.access import connections, find_keys

        self._keys = find_keys(address.access_key, address.secret_key)
        self._http = connections(timeout_s, timeout_s, secure=address.secure)
        try:
            self._client = _client(address, self._keys, self._http)
        except ValueError as error:
            raise UsageError(f"{address.endpoint!r} is no endpoint of an object store: {error}") from error

    def close(self) -> None:
        """Close idle connections; the store may be used again."""
        self._http.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def key(self, kind: str, sha256: str, suffix: str = "") -> str:
        """Name the object with that content: `<prefix><kind>/<sha256><suffix>`."""
        return f"{self.address.prefix}{kind}/{sha256}{suffix}"

    def put(self, data: Content, kind: Kind, suffix: str = "") -> StoredObject:
        """Store bytes under the name of their content; already there and young, they are not sent again."""
        stored = self.name(data, kind, suffix)
        self.put_named(stored, data)
        return stored

    def name(self, data: Content, kind: Kind, suffix: str = "") -> StoredObject:
        """Return what bytes will be once they are stored; the store is not asked."""
        hashed, size = hashlib.sha256(), 0
        for piece in _pieces(data):
            hashed.update(piece)
            size += piece.nbytes
        digest = hashed.hexdigest()
        return StoredObject(self.key(kind, digest, suffix), digest, size)

    def put_named(self, stored: StoredObject, data: Content) -> None:
        """`put` bytes that were named before, for who tries again: they are not hashed a second time."""
        if not self._is_young(stored):
            self._upload(stored, lambda: io.BufferedReader(_Viewed(_pieces(data))))

    def put_file(self, path: Path, kind: Kind, suffix: str = "") -> StoredObject:
        """`put` for a file, streamed. Raises OSError when it cannot be read, ObjectCorrupt when it changes."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
        stored = StoredObject(self.key(kind, digest, suffix), digest, size)
        if self._is_young(stored):
            return stored
        self._upload(stored, lambda: path.open("rb"))
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise ObjectCorrupt(f"{path} changed while it was stored as {stored.key}: store finished files")
        return stored

    def get(self, key: str, sha256: str, size_bytes: int) -> bytes:
        """Return the object's bytes, verified. Raises ObjectMissing, ObjectCorrupt, StoreUnavailable or StoreDenied.

        A key that could be no object's is one that is missing: keys come from records that anybody may have written.
        """
        self._check(key)

        def read() -> bytes:
            buffer = io.BytesIO()
            self._stream(key, sha256, size_bytes, buffer)
            return buffer.getvalue()

        return self._twice_if_torn(read)

    def get_to_file(self, key: str, sha256: str, size_bytes: int, path: Path) -> None:
        """Make the object a file at `path`, which appears whole and verified or not at all.

        Raises as `get`, and OSError when the file cannot be written.
        """
        self._check(key)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.part")

        def read() -> None:
            with temporary.open("wb") as file:
                self._stream(key, sha256, size_bytes, file)

        try:
            self._twice_if_torn(read)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Bytes `start` to `start + length` of the object, not verified (the caller knows the hash of the part).

        Raises ObjectCorrupt when the object ends before.
        """
        if length == 0:
            return b""

        def read() -> bytes:
            with self._opened(key, start, length) as response:
                # The part comes as 206, from rclone as 200; a store that knows no ranges sends all from the start.
                content_length = int(response.headers.get("Content-Length", length))
                if content_length > length:
                    response.read(start)
                return response.read(length)

        data = self._ask(read, key)
        if len(data) != length:
            raise ObjectCorrupt(f"{self._where(key)} ends before byte {start + length}: it is not the object recorded")
        return data

    def exists(self, key: str) -> bool:
        """Whether there is such an object."""
        try:
            self._ask(lambda: self._client.stat_object(bucket_name=self.address.bucket, object_name=key), key)
        except ObjectMissing:
            return False
        return True

    def listing(self, below: str = "") -> list[ListedObject]:
        """Return all objects under the address's prefix, or below a part of it; uploads under way are left out."""
        bucket, prefix = self.address.bucket, f"{self.address.prefix}{below}"

        def ask() -> list[ListedObject]:
            found = self._client.list_objects(bucket_name=bucket, prefix=prefix, recursive=True)
            return [
                ListedObject(one.object_name, one.size or 0, one.last_modified)
                for one in found
                if one.object_name and one.last_modified is not None and not one.is_dir
            ]

        return self._ask(ask, prefix)

    def modified(self, key: str) -> datetime | None:
        """Return when an object was last written; None when there is none."""
        try:
            found = self._ask(lambda: self._client.stat_object(bucket_name=self.address.bucket, object_name=key), key)
        except ObjectMissing:
            return None
        return found.last_modified

    def delete(self, key: str) -> None:
        """Remove an object; one that is not there is none to remove."""
        with suppress(ObjectMissing):
            self._ask(lambda: self._client.remove_object(bucket_name=self.address.bucket, object_name=key), key)

    def ensure_bucket(self) -> None:
        """Make the bucket unless it exists, and see that these keys may write and read it.

        Raises StoreDenied when they may not, UsageError when the name is none that S3 allows.
        """
        bucket = self.address.bucket
        try:
            if not self._ask(lambda: self._client.bucket_exists(bucket_name=bucket), ""):
                self._make_bucket()
            content = b"headrace may write and read here\n"
            probe = StoredObject(self.key(PROBE, hashlib.sha256(content).hexdigest()), "", len(content))
            self._upload(probe, lambda: io.BytesIO(content))
            self.get(probe.key, hashlib.sha256(content).hexdigest(), len(content))
        except ValueError as error:
            raise UsageError(f"{bucket!r} is no name of a bucket: {error}") from error
        except StoreDenied as error:
            raise StoreDenied(
                f"the access key {self._keys.access_key!r} may not use bucket {bucket!r} at {self.address.endpoint}: "
                f"give it list, read and write on that bucket, or name another bucket or other keys ({error})"
            ) from error

    def wait_ready(self, timeout_s: float) -> None:
        """Return when the store answers; raises StoreUnavailable when it did not within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self._ask(lambda: self._client.bucket_exists(bucket_name=self.address.bucket), "")
            except StoreUnavailable:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)
            else:
                return

    def _check(self, key: str) -> None:
        if not is_key(key):
            raise ObjectMissing(f"{self.address.endpoint}/{self.address.bucket} can hold no object {key[:200]!r}")

    def _make_bucket(self) -> None:
        from minio.error import S3Error

        def make() -> None:
            try:
                self._client.make_bucket(bucket_name=self.address.bucket)
            except S3Error as error:
                if error.code not in {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}:  # another process was quicker
                    raise

        self._ask(make, "")

    def _is_young(self, stored: StoredObject) -> bool:
        def stat() -> bool:
            found = self._client.stat_object(bucket_name=self.address.bucket, object_name=stored.key)
            return (
                found.size == stored.size_bytes
                and found.last_modified is not None
                and datetime.now(UTC) - found.last_modified < TAKEN_AS_STORED
            )

        try:
            return self._ask(stat, stored.key)
        except ObjectMissing:
            return False

    def _upload(self, stored: StoredObject, open_data: Callable[[], BinaryIO]) -> None:
        def send(client: Minio) -> None:
            with open_data() as data:
                client.put_object(
                    bucket_name=self.address.bucket,
                    object_name=stored.key,
                    data=data,
                    length=stored.size_bytes,
                    part_size=max(PART_BYTES, -(-stored.size_bytes // MOST_PARTS)),
                )

        if stored.size_bytes <= PART_BYTES:
            self._ask(lambda: send(self._client), stored.key)
            return
        # A store may join the parts only at the end, and answers when it has.
        join_s = JOIN_S + stored.size_bytes / SLOWEST_JOIN_BYTES_PER_S
        from headrace.infra.store.access import connections

        http = connections(self._timeout_s, join_s, secure=self.address.secure)
        try:
            self._ask(lambda: send(_client(self.address, self._keys, http)), stored.key)
        finally:
            http.clear()

    def _stream(self, key: str, sha256: str, size_bytes: int, into: BinaryIO) -> None:
        def read() -> str:
            digest = hashlib.sha256()
            into.seek(0)
            into.truncate()
            with self._opened(key, 0, 0) as response:
                for chunk in response.stream(CHUNK_BYTES):
                    digest.update(chunk)
                    into.write(chunk)
                    if into.tell() > size_bytes:
                        break
            return digest.hexdigest()

        found = self._ask(read, key)
        if (size := into.tell()) != size_bytes:
            more = " or more" if size > size_bytes else ""
            raise ObjectCorrupt(f"{self._where(key)} has {size}{more} bytes where its record says {size_bytes}")
        if found != sha256:
            raise ObjectCorrupt(f"{self._where(key)} has sha256 {found} where its record says {sha256}")

    def _twice_if_torn(self, read: Callable[[], T]) -> T:
        """Look once more: rclone tears what is being written anew, even with the same bytes."""
        try:
            return read()
        except ObjectCorrupt:
            return read()

    @contextmanager
    def _opened(self, key: str, offset: int, length: int) -> Iterator[urllib3.BaseHTTPResponse]:
        response = self._client.get_object(
            bucket_name=self.address.bucket, object_name=key, offset=offset, length=length
        )
        try:
            yield response
        finally:
            response.close()
            response.release_conn()

    def _ask(self, call: Callable[[], T], key: str) -> T:
        """One request; all its failures as this module's errors.

        A connection that the store closed while it was idle (a restart) says so at once, hence the second attempt.
        """
        from minio.error import InvalidResponseError, S3Error, ServerError
        from urllib3.exceptions import HTTPError, ProtocolError

        try:
            try:
                return call()
            except ProtocolError:
                return call()
        except (S3Error, ServerError, InvalidResponseError, HTTPError) as error:
            raise self._translated(error, key) from error

    def _translated(self, error: Exception, key: str) -> HeadraceError:
        from urllib3.exceptions import SSLError

        from headrace.infra.store.access import KEY_PLACES, tls_refusal

        where = self._where(key)
        code = _s3_code(error)
        if code in _MISSING:
            return ObjectMissing(f"{where} does not exist ({code})")
        if code in _DENIED:
            return StoreDenied(
                f"{where}: {code} for the access key {self._keys.access_key!r}; check the keys ({KEY_PLACES}) and "
                "their rights (`headrace store-policy` prints those that each component needs)"
            )
        if isinstance(error, SSLError) and (why := tls_refusal(error)):
            return StoreError(f"{where}: {why}")
        if code in _AWAY:
            return StoreUnavailable(f"{where}: the store cannot do it now ({code}: {_AWAY[code]})")
        if code is None:
            return StoreUnavailable(f"{where}: the store does not answer ({error})")
        plain = code in {"BadRequest", "400"} and not self.address.secure
        hint = "; a store that speaks TLS answers so: write https:// before the endpoint" if plain else ""
        return StoreError(f"{where}: the store refuses ({code}): {error}{hint}")

    def _where(self, key: str) -> str:
        return f"{self.address.endpoint}/{self.address.bucket}/{key}"


def is_key(key: str) -> bool:
    """Tell whether a key could be an object's; no such key leads out of the folder that it is taken below."""
    return len(key) <= 1024 and all(_SEGMENT.fullmatch(part) for part in key.split("/"))


def _pieces(data: Content) -> list[memoryview]:
    return [memoryview(piece).cast("B") for piece in ([data] if isinstance(data, bytes | memoryview) else data)]


class _Viewed(io.RawIOBase):
    """Bytes to read from where they are, with no copy of them all."""

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self._rest = deque(piece for piece in pieces if piece.nbytes)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        if not self._rest:
            return 0
        into, piece = memoryview(buffer), self._rest.popleft()
        size = min(len(into), len(piece))
        into[:size] = piece[:size]
        if size < len(piece):
            self._rest.appendleft(piece[size:])
        return size


def _client(address: StoreAddress, keys: StoreKeys, http: urllib3.PoolManager) -> Minio:
    from minio import Minio

    return Minio(
        endpoint=address.endpoint,
        credentials=keys,
        secure=address.secure,
        region=address.region,
        http_client=http,
    )


def _s3_code(error: Exception) -> str | None:
    """Read S3's code of an error, also from rclone's, whose content type the client does not take for XML."""
    from minio.error import InvalidResponseError, S3Error

    if isinstance(error, S3Error):
        return error.code
    if isinstance(error, InvalidResponseError):
        found = re.search(r"<Code>(\w+)</Code>", str(error)) or re.search(r"Response code: (4\d\d)", str(error))
        return found[1] if found else None
    return None
