"""Requests to one bucket of an S3 store; every failure becomes an error of `store_errors.py`.

The S3 client is imported at its first use, because this takes a third of a second and many commands only read topics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO, TypeVar
from xml.etree import ElementTree as ET

from headrace.infra.errors import UsageError
from headrace.infra.store.object_names import ListedObject
from headrace.infra.store.store_address import StoreAddress
from headrace.infra.store.store_errors import ObjectMissing, StoreUnavailable, is_unread_conflict, translate_error

if TYPE_CHECKING:
    import urllib3
    from minio import Minio
    from minio.datatypes import Object as StoredAs

STORE_TIMEOUT_S = 4.0
UPLOAD_PART_BYTES = 8 * 1024 * 1024
"""Larger objects go up in parts of this size."""
MOST_PARTS = 10_000
"""S3's limit; the parts of an object beyond 80 GB are larger."""
JOIN_S, SLOWEST_JOIN_BYTES_PER_S = 30.0, 20_000_000
"""Seconds for a store to take a part or to join all parts; to send all again earlier would not help."""
_REFUSED = frozenset({400, 403})
"""Statuses with many causes, which only the code in a body tells apart."""
T = TypeVar("T")


def _check_bucket_name(name: str) -> None:
    """Raise UsageError for an invalid bucket name."""
    from minio.helpers import check_bucket_name

    try:
        check_bucket_name(name, s3_check=True)
    except ValueError as error:
        raise UsageError(
            f"{name!r} is not the name of a bucket: {error}; write 3 to 63 lower-case letters, digits, '-' and '.', "
            "without s3:// and without a path"
        ) from error


class Bucket:
    """One bucket with a pool of connections. Thread-safe; the constructor sends no request.

    Raises UsageError for an invalid endpoint, or without keys.
    """

    def __init__(self, address: StoreAddress, timeout_s: float) -> None:
        from headrace.infra.store.access import find_keys, open_connections

        self.address = address
        self._timeout_s = timeout_s
        self._keys = find_keys(address.access_key, address.secret_key, address.keys_file)
        self._http = open_connections(timeout_s, timeout_s, secure=address.secure)
        try:
            self.client = self._client(self._http)
        except ValueError as error:
            shown = address.endpoint.rpartition("@")[2]
            raise UsageError(
                f"{shown!r} is not the endpoint of an object store: {error}; write only host:port, without the name of "
                "a bucket and without access keys"
            ) from error
        _check_bucket_name(address.bucket)

    def _client(self, http: urllib3.PoolManager) -> Minio:
        from minio import Minio

        where = self.address
        return Minio(
            endpoint=where.endpoint, credentials=self._keys, secure=where.secure, region=where.region, http_client=http
        )

    @property
    def access_key(self) -> str:
        """Id of the access key in use, which is not a secret."""
        return self._keys.access_key

    def close(self) -> None:
        """Close idle connections; the bucket may be used again."""
        self._http.clear()

    def name_object(self, key: str) -> str:
        """Return how messages name an object."""
        return f"{self.address.endpoint}/{self.address.bucket}/{key}"

    def ask(self, call: Callable[[], T], key: str) -> T:
        """Make one request, about an object or about the whole bucket ("").

        A second attempt is made because an idle connection that the store has closed (a restart) fails at once.
        """
        from minio.error import InvalidResponseError, S3Error, ServerError
        from urllib3.exceptions import HTTPError, ProtocolError

        try:
            try:
                return call()
            except ProtocolError:
                return call()
        except (S3Error, ServerError, InvalidResponseError, HTTPError, ET.ParseError) as error:
            raise translate_error(error, self.name_object(key), self.address, self.access_key) from error
        except ValueError as error:
            if not is_unread_conflict(error):
                raise
            raise translate_error(error, self.name_object(key), self.address, self.access_key) from error

    def _ask_head(self, call: Callable[[], T], key: str) -> T:
        """Make a HEAD request. A refusal has no body, so a GET of the same thing is made once for the code."""
        from minio.error import InvalidResponseError, S3Error

        def request() -> T:
            try:
                return call()
            except S3Error as error:
                if error.response.status not in _REFUSED:
                    raise
                try:
                    self._get_little(key)
                except (S3Error, InvalidResponseError) as told:
                    if "Code>" in str(told) or isinstance(told, S3Error):
                        raise told from error
                raise

        return self.ask(request, key)

    def _get_little(self, key: str) -> None:
        if key:
            with self.open_object(key, 0, 1):
                return
        next(iter(self.client.list_objects(bucket_name=self.address.bucket)), None)

    def stat(self, key: str) -> StoredAs | None:
        """Return the client's size and date of an object; None if it does not exist."""
        name = self.address.bucket
        try:
            return self._ask_head(lambda: self.client.stat_object(bucket_name=name, object_name=key), key)
        except ObjectMissing:
            return None

    def list_objects(self, prefix: str) -> list[ListedObject]:
        """Return all objects with this key prefix, without running uploads."""

        def request() -> list[ListedObject]:
            found = self.client.list_objects(bucket_name=self.address.bucket, prefix=prefix, recursive=True)
            return [
                ListedObject(one.object_name, one.size or 0, one.last_modified)
                for one in found
                if one.object_name and one.last_modified is not None and not one.is_dir
            ]

        return self.ask(request, prefix)

    def list_some(self, prefix: str, most: int) -> list[str]:
        """Return the keys of some objects with this prefix."""

        def request() -> list[str]:
            found = self.client.list_objects(bucket_name=self.address.bucket, prefix=prefix)
            return [one.object_name for one in islice(found, most) if one.object_name and not one.is_dir]

        return self.ask(request, prefix)

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        name = self.address.bucket
        with suppress(ObjectMissing):
            self.ask(lambda: self.client.remove_object(bucket_name=name, object_name=key), key)

    @contextmanager
    def open_object(self, key: str, offset: int, length: int) -> Iterator[urllib3.BaseHTTPResponse]:
        """Open `length` bytes of an object from `offset` on (0: all). Call and read it within `ask`."""
        response = self.client.get_object(
            bucket_name=self.address.bucket, object_name=key, offset=offset, length=length
        )
        try:
            yield response
        finally:
            response.close()
            response.release_conn()

    def upload(self, key: str, size_bytes: int, open_data: Callable[[], BinaryIO]) -> None:
        """Send an object; `open_data` is called again for a second attempt.

        S3 may answer status 200 while it joins the parts of a large object, and then report a failure; the client sees
        this as an answer without an ETag.
        """

        def send(client: Minio) -> None:
            with open_data() as data:
                stored = client.put_object(
                    bucket_name=self.address.bucket,
                    object_name=key,
                    data=data,
                    length=size_bytes,
                    part_size=max(UPLOAD_PART_BYTES, -(-size_bytes // MOST_PARTS)),
                )
            if size_bytes > UPLOAD_PART_BYTES and not stored.etag:
                raise StoreUnavailable(
                    f"the store did not complete the multipart upload of {self.name_object(key)}: all parts are "
                    "sent again"
                )

        if size_bytes <= UPLOAD_PART_BYTES:
            self.ask(lambda: send(self.client), key)
            return
        # A store may join the parts only at the end, and answers when it has.
        join_s = JOIN_S + size_bytes / SLOWEST_JOIN_BYTES_PER_S
        from headrace.infra.store.access import open_connections

        http = open_connections(self._timeout_s, join_s, secure=self.address.secure)
        try:
            self.ask(lambda: send(self._client(http)), key)
        finally:
            http.clear()

    def has_bucket(self) -> bool:
        """Return whether the bucket exists."""
        return self._ask_head(lambda: self.client.bucket_exists(bucket_name=self.address.bucket), "")

    def make(self) -> None:
        """Make the bucket unless it exists."""
        from minio.error import S3Error

        name = self.address.bucket

        def request() -> None:
            try:
                self.client.make_bucket(bucket_name=name)
            except S3Error as error:
                if error.code not in {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}:  # another process was faster
                    raise

        if not self.has_bucket():
            self.ask(request, "")

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the store answers. Raises StoreUnavailable after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.has_bucket()
            except StoreUnavailable:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)
            else:
                return
